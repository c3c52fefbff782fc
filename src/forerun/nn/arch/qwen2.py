"""Qwen2 and Qwen2.5: the gated shape with biases on q, k and v."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, Part, plain_part
from forerun.nn.arch._gated import gated_from_gguf, gated_from_hf
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("Qwen2ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen2",)


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return gated_from_hf(checkpoint, "qwen2")


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    return gated_from_gguf(checkpoint, "qwen2")


def part(name: str, config: ModelConfig, kind: Kind) -> Part:
    """Where a canonical weight lies."""
    return plain_part(name, kind)
