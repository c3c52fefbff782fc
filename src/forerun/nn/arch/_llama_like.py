"""Llama-like configs: RMS norm, rotary positions, a gated MLP. A family adds what it does differently."""

from __future__ import annotations

from forerun.nn.arch._rope import rope_from_gguf, rope_from_hf
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig


def llama_like_from_hf(settings: Settings, family: str) -> ModelConfig:
    """From a Hugging Face config.json. Raises LoadError for what is missing, wrong or not supported."""
    sizes = settings.sizes()
    return ModelConfig(
        family=family,
        **sizes,
        norm_eps=settings.number("rms_norm_eps", low=1e-15, high=1),
        activation=settings.activation("hidden_act"),
        rope=rope_from_hf(settings, sizes["head_dim"]),
        tied_head=settings.is_tied(),
        sliding_window=settings.window(),
    )


def llama_like_from_gguf(settings: Settings, family: str) -> ModelConfig:
    """From GGUF metadata. Raises LoadError for what is missing, wrong or not supported."""
    settings.refuse("expert_count", 0)
    sizes = settings.sizes()
    settings.refuse("attention.value_length", sizes["head_dim"])
    return ModelConfig(
        family=family,
        **sizes,
        norm_eps=settings.number("attention.layer_norm_rms_epsilon", low=1e-15, high=1),
        rope=rope_from_gguf(settings, sizes["head_dim"]),
        tied_head=settings.is_tied(),
        sliding_window=settings.window(),
    )
