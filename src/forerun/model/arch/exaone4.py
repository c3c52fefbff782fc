"""EXAONE 4 (arXiv 2507.11407): norms of what sublayers add and of each head; positions in windowed layers alone.

The small models have no windows, and positions in all layers.
"""

from __future__ import annotations

from forerun.model.arch.base.mapping import (
    llama_like,
    plain_source,
    read_layers,
    turned_in_windows,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Exaone4ForCausalLM",)
GGUF_ARCHITECTURES = ("exaone4",)

source = plain_source


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {"sliding_window": 4096}
    layers = read_layers(settings, period=4)
    if settings.get("attention.sliding_window" if settings.is_gguf else "sliding_window"):
        layers = turned_in_windows(layers)
    return llama_like(settings, "exaone4", layers=layers, norms="after", qk_norm="head")
