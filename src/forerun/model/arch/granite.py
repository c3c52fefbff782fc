"""IBM Granite 3 (dense): the llama-like shape with multipliers on embeddings, residuals, scores and logits."""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import interleaved_source, llama_like
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("GraniteForCausalLM",)
GGUF_ARCHITECTURES = ("granite",)

source = interleaved_source

_HF_KEYS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
_GGUF_KEYS = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    config = llama_like(settings, "granite")
    embedding, residual, attention, logits = _GGUF_KEYS if settings.is_gguf else _HF_KEYS
    return replace(
        config,
        embedding_multiplier=settings.number(embedding, 1.0),
        residual_multiplier=settings.number(residual, 1.0),
        attention_scale=settings.number(attention, config.scale if settings.is_gguf else 1.0),
        logits_divisor=settings.number(logits, 1.0),
    )
