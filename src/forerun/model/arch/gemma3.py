"""Gemma 3's text half (arXiv 2503.19786): Gemma 2 with norms of q and k for caps, five windowed layers of six."""

from __future__ import annotations

from forerun.model.arch.base.gemma import ASSUMED, gemma_like, gemma_source
from forerun.model.arch.base.mapping import read_layers
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
GGUF_ARCHITECTURES = ("gemma3",)

source = gemma_source

_LARGEST = 62
"""Layers of the 27B, whose scores are scaled as if heads had the width of its embedding over their number."""


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint. Only layers that see everything have a scaled rope."""
    settings.reject("use_bidirectional_attention", False)
    settings.assumed = {
        **ASSUMED,
        "vocab_size": 262_208,
        "num_hidden_layers": 26,
        "rope_theta": 1_000_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    }
    layers = read_layers(settings, period=6, local_theta=10_000.0, is_local_plain=True)
    return gemma_like(settings, "gemma3", layers, _LARGEST, qk_norm="head")
