"""OLMo 2 (arXiv 2501.00656) and 3: norms of what sublayers add and of all of q and k; 3 has windows in most layers."""

from __future__ import annotations

from forerun.model.arch.base.mapping import llama_like, plain_source, read_layers
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
GGUF_ARCHITECTURES = ("olmo2",)

source = plain_source


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint. Only layers that see everything have a scaled rope."""
    if settings.checkpoint.architecture == "Olmo3ForCausalLM":
        settings.assumed = {"rope_theta": 500_000.0, "sliding_window": 4096}
    return llama_like(
        settings,
        "olmo2",
        layers=read_layers(settings, period=4, is_local_plain=True),
        norms="after",
        qk_norm="whole",
    )
