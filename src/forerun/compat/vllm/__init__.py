"""vLLM's names: a script of vLLM runs here with `forerun.compat.vllm` in the place of `vllm` in its imports.

What is not here is an error that names the nearest. `LLM.encode` gives vectors, as vLLM's does; `forerun.LLM.encode`
gives token ids.
"""

from __future__ import annotations

from forerun.compat.absent import of_module
from forerun.compat.vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from forerun.compat.vllm.llm import LLM
from forerun.compat.vllm.v1.engine.async_llm import AsyncLLM
from forerun.inputs import TextPrompt, TokensPrompt
from forerun.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from forerun.sampling_params import SamplingParams

AsyncLLMEngine = AsyncLLM

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "TextPrompt",
    "TokensPrompt",
]

__getattr__ = of_module(
    __name__,
    __all__,
    {
        "LLMEngine": "LLM.submit queues a prompt, AsyncLLM serves many",
        "ClassificationOutput": "models generate and embed: LLM.score compares texts",
        "ClassificationRequestOutput": "models generate and embed: LLM.score compares texts",
        "PoolingParams": "LLM.embed(pooling=...) and LLM.encode(pooling_task=...) say how",
        "ModelRegistry": "models are read by their files' architecture (docs/models.md)",
    },
)
