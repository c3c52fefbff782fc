"""llama-cpp-python's `llama_cpp.llama_grammar`."""

from __future__ import annotations

from pathlib import Path

from forerun.compat.absent import of_module
from forerun.core.structured import StructuredOutputsParams


class LlamaGrammar:
    """The form of an answer: GBNF, or a JSON schema."""

    def __init__(self, form: StructuredOutputsParams) -> None:
        self.form = form

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Take a GBNF grammar. Raises RequestError."""
        return cls(StructuredOutputsParams(grammar=grammar))

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """Take the GBNF grammar of a file. Raises RequestError."""
        return cls.from_string(Path(file).read_text("utf-8"))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Take a JSON schema as text. Raises RequestError."""
        return cls(StructuredOutputsParams(json=json_schema))


__all__ = ["LlamaGrammar"]
__getattr__ = of_module(__name__, __all__, {})
