"""Qwen2 and Qwen2.5: the llama-like shape with biases on q, k and v."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, TensorSource, plain_source
from forerun.nn.arch._llama_like import llama_like_from_gguf, llama_like_from_hf
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("Qwen2ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen2",)


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return llama_like_from_hf(checkpoint, "qwen2")


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    return llama_like_from_gguf(checkpoint, "qwen2")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    return plain_source(name, kind)
