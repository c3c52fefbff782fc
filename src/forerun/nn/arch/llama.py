"""Llama 2 and 3, SmolLM2, TinyLlama, CodeLlama, Mistral: the llama-like shape itself. GGUF interleaves q and k."""

from __future__ import annotations

from forerun.nn.arch._common import Kind, TensorSource, interleaved_source
from forerun.nn.arch._llama_like import llama_like
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = ("llama",)


def config(settings: Settings) -> ModelConfig:
    """The config of a checkpoint."""
    return llama_like(settings, "llama")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    return interleaved_source(name, kind)
