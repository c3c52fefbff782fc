"""Phi-3, 3.5 and 4-mini: gated; q, k, v in one matrix, gate and up in another; long contexts by longrope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, Part, fused_rows, plain_part
from forerun.nn.arch._gated import gated_from_gguf, gated_from_hf
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("Phi3ForCausalLM",)
GGUF_ARCHITECTURES = ("phi3",)


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return gated_from_hf(checkpoint, "phi3")


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    return gated_from_gguf(checkpoint, "phi3")


def part(name: str, config: ModelConfig, kind: Kind) -> Part:
    """Where a canonical weight lies."""
    if name in ("q", "k", "v"):
        fused = "model.layers.{i}.self_attn.qkv_proj" if kind == "hf" else "blk.{i}.attn_qkv"
    elif name in ("gate", "up"):
        fused = "model.layers.{i}.mlp.gate_up_proj" if kind == "hf" else "blk.{i}.ffn_up"
    else:
        return plain_part(name, kind)
    return Part(fused, fused_rows(name, config))
