"""Llama-like configs: RMS norm, rotary positions, a gated MLP. A family adds what it does differently."""

from __future__ import annotations

from forerun.nn.arch._rope import rope_from_gguf, rope_from_hf
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig


def llama_like(settings: Settings, family: str) -> ModelConfig:
    """From config.json or GGUF metadata. Raises LoadError for what is missing, wrong or not supported."""
    is_gguf = settings.is_gguf
    if is_gguf:
        settings.refuse("expert_count", 0)
    sizes = settings.sizes()
    if is_gguf:
        settings.refuse("attention.value_length", sizes["head_dim"])
    norm_eps = "attention.layer_norm_rms_epsilon" if is_gguf else "rms_norm_eps"
    return ModelConfig(
        family=family,
        **sizes,
        norm_eps=settings.number(norm_eps, low=1e-15, high=1),
        activation="silu" if is_gguf else settings.activation("hidden_act"),
        rope=(rope_from_gguf if is_gguf else rope_from_hf)(settings, sizes["head_dim"]),
        tied_head=settings.is_tied(),
        sliding_window=settings.window(),
    )
