"""Llama 2 and 3, SmolLM2, TinyLlama, CodeLlama, Mistral: the llama-like shape itself. GGUF interleaves q and k."""

from __future__ import annotations

from forerun.nn.arch._common import Kind, TensorSource, interleaved_source
from forerun.nn.arch._llama_like import llama_like_from_gguf, llama_like_from_hf
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = ("llama",)


def config_from_hf(settings: Settings) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return llama_like_from_hf(settings, "llama")


def config_from_gguf(settings: Settings) -> ModelConfig:
    """The config of a GGUF file."""
    return llama_like_from_gguf(settings, "llama")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    return interleaved_source(name, kind)
