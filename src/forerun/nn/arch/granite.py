"""IBM Granite 3 (dense): the llama-like shape with multipliers on embeddings, residuals, scores and logits."""

from __future__ import annotations

from dataclasses import replace

from forerun.nn.arch._common import Kind, TensorSource, interleaved_source
from forerun.nn.arch._llama_like import llama_like_from_gguf, llama_like_from_hf
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig

HF_ARCHITECTURES = ("GraniteForCausalLM",)
GGUF_ARCHITECTURES = ("granite",)


def config_from_hf(settings: Settings) -> ModelConfig:
    """The config of a Hugging Face folder."""
    return replace(
        llama_like_from_hf(settings, "granite"),
        embedding_multiplier=settings.number("embedding_multiplier", 1.0),
        residual_multiplier=settings.number("residual_multiplier", 1.0),
        attention_scale=settings.number("attention_multiplier", 1.0),
        logits_divisor=settings.number("logits_scaling", 1.0),
    )


def config_from_gguf(settings: Settings) -> ModelConfig:
    """The config of a GGUF file."""
    config = llama_like_from_gguf(settings, "granite")
    return replace(
        config,
        embedding_multiplier=settings.number("embedding_scale", 1.0),
        residual_multiplier=settings.number("residual_scale", 1.0),
        attention_scale=settings.number("attention.scale", config.scale),
        logits_divisor=settings.number("logit_scale", 1.0),
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    return interleaved_source(name, kind)
