"""Llama 2 and 3, SmolLM2, TinyLlama, CodeLlama, Mistral: the plain gated shape. GGUF interleaves q and k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, Part, permuted_part
from forerun.nn.arch._gated import gated_from_gguf, gated_from_hf
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = ("llama",)


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return gated_from_hf(checkpoint, "llama")


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    return gated_from_gguf(checkpoint, "llama")


def part(name: str, config: ModelConfig, kind: Kind) -> Part:
    """Where a canonical weight lies."""
    return permuted_part(name, config, kind)
