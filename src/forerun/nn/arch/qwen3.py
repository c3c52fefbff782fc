"""Qwen3 (dense): the gated shape with an RMS norm on every head of q and k."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, Part, plain_part
from forerun.nn.arch._gated import gated_from_gguf, gated_from_hf
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("Qwen3ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen3",)


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return replace(gated_from_hf(checkpoint, "qwen3"), qk_norm=True)


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    return replace(gated_from_gguf(checkpoint, "qwen3"), qk_norm=True)


def part(name: str, config: ModelConfig, kind: Kind) -> Part:
    """Where a canonical weight lies."""
    return plain_part(name, kind)
