"""Llama 2 and 3, SmolLM2, TinyLlama, CodeLlama, Mistral: the llama-like shape itself. GGUF interleaves q and k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, TensorSource, permuted_source
from forerun.nn.arch._llama_like import llama_like_from_gguf, llama_like_from_hf
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = ("llama",)


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return llama_like_from_hf(checkpoint, "llama")


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    return llama_like_from_gguf(checkpoint, "llama")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    return permuted_source(name, config, kind)
