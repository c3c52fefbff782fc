"""llama-cpp-python's names: a script of it runs here with `forerun.compat.llama_cpp` in the place of `llama_cpp`.

`Llama` is a thin face of `LLM`, which is its `llm`. What is not here is an error that names the nearest.
"""

from __future__ import annotations

from forerun.compat.absent import of_module
from forerun.compat.llama_cpp.llama import Llama, LlamaRAMCache
from forerun.compat.llama_cpp.llama_grammar import LlamaGrammar
from forerun.compat.llama_cpp.processors import LogitsProcessorList, StoppingCriteriaList

LlamaCache = LlamaDiskCache = LlamaRAMCache
LLAMA_POOLING_TYPE_UNSPECIFIED = -1
LLAMA_POOLING_TYPE_MEAN = 1
LLAMA_POOLING_TYPE_LAST = 3

__all__ = [
    "LLAMA_POOLING_TYPE_LAST",
    "LLAMA_POOLING_TYPE_MEAN",
    "LLAMA_POOLING_TYPE_UNSPECIFIED",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LogitsProcessorList",
    "StoppingCriteriaList",
]
__getattr__ = of_module(
    __name__,
    __all__,
    {
        "llama_cpp": "the C interface is not here, only Llama",
        "LlamaState": "prompts are kept by themselves: LLM(prompt_cache=FOLDER) keeps them on disk",
    },
)
