"""llama-cpp-python's `llama_cpp.llama_speculative`."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.compat.absent import of_module


@dataclass(frozen=True)
class LlamaPromptLookupDecoding:
    """Drafts what followed the same tokens before: `drafter="prompt_lookup"`."""

    max_ngram_size: int = 2
    num_pred_tokens: int = 10

    @property
    def drafter(self) -> dict[str, object]:
        """Write it as `LLM` takes it."""
        options = {"ngram_max": self.max_ngram_size, "num_draft": self.num_pred_tokens}
        return {"method": "prompt_lookup", "ngram_min": min(self.max_ngram_size, 2), **options}


__all__ = ["LlamaPromptLookupDecoding"]
__getattr__ = of_module(
    __name__, __all__, {"LlamaDraftModel": "subclass forerun.drafters.base.contract.Drafter"}
)
