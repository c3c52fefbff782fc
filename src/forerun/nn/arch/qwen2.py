"""Qwen2 and Qwen2.5: the llama-like shape with biases on q, k and v."""

from __future__ import annotations

from forerun.nn.arch._common import Kind, TensorSource, plain_source
from forerun.nn.arch._llama_like import llama_like
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig

HF_ARCHITECTURES = ("Qwen2ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen2",)


def config(settings: Settings) -> ModelConfig:
    """The config of a checkpoint."""
    return llama_like(settings, "qwen2")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    return plain_source(name, kind)
