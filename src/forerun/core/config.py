"""EngineConfig: the only place where an option of the engine is declared.

`LLM(...)`, the command line, autotune and bench are built from it; a field's docstring is its help text.
The command line's further spellings stand in `cli/_options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from forerun.core.errors import ConfigError, unknown

DEFAULT_MODEL = "smollm2-135m-instruct"
AUTO: Final = "auto"

Quant = Literal["none", "int8", "int4"]
Precision = Literal["auto", "fp16", "fp32"]

_ALIASES = ("speculative_config", "assistant_model", "prompt_lookup_num_tokens")
"""vLLM's and Hugging Face's names, which `EngineConfig.of` reads besides the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to run and how. Raises ConfigError for a number out of range; the loader checks what names mean."""

    model: str = DEFAULT_MODEL
    """A known name, a path (GGUF or folder) or a hub name."""
    drafter: str | Mapping[str, object] = AUTO
    """auto, none, NAME:option=value,... or several joined by + or ++."""
    draft_model: str | None = None
    """A smaller model that drafts; implies -d draft_model."""
    num_draft: int | None = None
    """Tokens drafted a step, at most; an option of most drafters."""
    draft_budget: int = 63
    """Nodes a drafter may propose for a sequence in one step; its own options usually ask for fewer."""
    controller: bool = True
    """Draft only as much as is expected to be faster; else always in full."""
    device: str = AUTO
    """auto, cpu, cuda or cuda:N."""
    backend: str = AUTO
    """auto, native (CPU kernels) or torch (fp32)."""
    quant: Quant = "none"
    """int8 or int4: round the weights; none keeps them. Changes the model."""
    head_bits: int | None = None
    """4 or 8: round the output head. Faster; changes the model."""
    kv: Precision = AUTO
    """auto, fp16 or fp32: how keys and values are kept; auto is what the backend does best. Changes the model."""
    weight_cache: bool = True
    """Keep packed weights on disk: starts are quicker."""
    threads: int | None = None
    """CPU threads; default: physical cores."""
    max_model_len: int | None = None
    """Tokens of prompt and answer, at most; default: the model's, up to 4096."""
    max_num_seqs: int = 8
    """Sequences that run at once; each owns one cache slot."""
    prefill_chunk: int = 256
    """Prompt tokens read in one step, so that running sequences do not wait for a long prompt."""

    def __post_init__(self) -> None:
        for name in ("draft_budget", "threads", "max_num_seqs", "prefill_chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.kv not in get_args(Precision):
            raise ConfigError(unknown("precision of keys and values", self.kv, get_args(Precision)))

    @classmethod
    def of(cls, model: str | EngineConfig = DEFAULT_MODEL, /, **overrides: Any) -> EngineConfig:
        """A model's configuration, or a given one, with fields changed; other systems' names are read as well.

        Raises ConfigError for a name that is none, with the closest that is.
        """
        config = model if isinstance(model, cls) else cls(model=str(model))
        known = {field.name for field in fields(cls)}
        for name in overrides.keys() - known.union(_ALIASES):
            raise ConfigError(unknown("option", name, known.union(_ALIASES)))
        given = {name: value for name, value in overrides.items() if name not in _ALIASES}
        is_auto = given.get("drafter", config.drafter) == AUTO
        if (speculative := overrides.get("speculative_config")) is not None:
            if not is_auto:
                raise ConfigError("give drafter or speculative_config, not both")
            given["drafter"] = speculative
        elif (num_tokens := overrides.get("prompt_lookup_num_tokens")) is not None:
            given["num_draft"] = num_tokens
            if is_auto:
                given["drafter"] = "prompt_lookup"
        if (assistant := overrides.get("assistant_model")) is not None:
            given["draft_model"] = given.get("draft_model") or assistant
        return replace(config, **given)
