"""IBM Granite 3 (dense): the llama-like shape with multipliers on embeddings, residuals, scores and logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, TensorSource, permuted_source
from forerun.nn.arch._llama_like import llama_like_from_gguf, llama_like_from_hf
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("GraniteForCausalLM",)
GGUF_ARCHITECTURES = ("granite",)


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    settings = Settings(checkpoint)
    return replace(
        llama_like_from_hf(checkpoint, "granite"),
        embedding_multiplier=float(settings.get("embedding_multiplier", 1.0)),
        residual_multiplier=float(settings.get("residual_multiplier", 1.0)),
        attention_scale=float(settings.get("attention_multiplier", 1.0)),
        logits_divisor=float(settings.get("logits_scaling", 1.0)),
    )


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    settings = Settings(checkpoint)
    return replace(
        llama_like_from_gguf(checkpoint, "granite"),
        embedding_multiplier=float(settings.get("embedding_scale", 1.0)),
        residual_multiplier=float(settings.get("residual_scale", 1.0)),
        attention_scale=settings.get("attention.scale"),
        logits_divisor=float(settings.get("logit_scale", 1.0)),
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    return permuted_source(name, config, kind)
