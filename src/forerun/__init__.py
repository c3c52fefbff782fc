"""forerun: speculative decoding for large language models on CPUs, faster answers with exactly the same tokens.

>>> from forerun import LLM, SamplingParams
>>> llm = LLM("smollm2-135m-instruct", drafter="auto")
>>> llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))

Public names are loaded when first asked for: `import forerun` imports neither torch nor numpy.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerun.core.config import EngineConfig
    from forerun.core.errors import (
        CapacityError,
        ConfigError,
        ForerunError,
        LoadError,
        RequestError,
    )
    from forerun.core.params import SamplingParams
    from forerun.core.structured import StructuredOutputsParams
    from forerun.core.types import Draft, Event, Features, FinishReason, Outcome, Seq
    from forerun.engine.outputs import CompletionOutput, RequestOutput
    from forerun.inputs import TextPrompt, TokensPrompt
    from forerun.llm import LLM
    from forerun.server.async_llm import AsyncLLM

    __version__: str

__all__ = [
    "AsyncLLM",
    "CapacityError",
    "CompletionOutput",
    "ConfigError",
    "Draft",
    "EngineConfig",
    "Event",
    "Features",
    "FinishReason",
    "ForerunError",
    "LLM",
    "LoadError",
    "Outcome",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "Seq",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_NAMES_OF_MODULE = {
    "forerun.core.config": {"EngineConfig"},
    "forerun.core.errors": {
        "CapacityError",
        "ConfigError",
        "ForerunError",
        "LoadError",
        "RequestError",
    },
    "forerun.core.params": {"SamplingParams"},
    "forerun.core.structured": {"StructuredOutputsParams"},
    "forerun.core.types": {"Draft", "Event", "Features", "FinishReason", "Outcome", "Seq"},
    "forerun.engine.outputs": {"CompletionOutput", "RequestOutput"},
    "forerun.inputs": {"TextPrompt", "TokensPrompt"},
    "forerun.llm": {"LLM"},
    "forerun.server.async_llm": {"AsyncLLM"},
}
_ELSEWHERE = {
    "forerun.compat.llama_cpp": {"Llama", "LlamaGrammar", "LogitsProcessorList"},
    "forerun.compat.vllm": {"AsyncEngineArgs", "AsyncLLMEngine", "EngineArgs"},
}
"""Names of other engines' packages, which their scripts import."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    for module, names in _NAMES_OF_MODULE.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    for module, names in _ELSEWHERE.items():
        if name in names:  # of an AttributeError `from` would not show the words
            raise ImportError(
                f"forerun has no '{name}': from {module} import {name}", name="forerun"
            )
    raise AttributeError(f"module 'forerun' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__


@functools.cache  # the metadata is a file, and the server names the version in every answer
def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("forerun")
    except metadata.PackageNotFoundError:
        return "0+source"
