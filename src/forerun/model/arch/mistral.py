"""Mistral, Ministral and Ministral 3: llama with windows, by layer in some; in Ministral 3 queries grow.

GGUF calls those without that growth `llama`, but `mistral3` from Mistral Small 3 on.
"""

from __future__ import annotations

from typing import Any

from forerun.model.arch.base.mapping import interleaved_source, llama_like
from forerun.model.arch.base.settings import Settings, number_in
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = (
    "MistralForCausalLM",
    "MinistralForCausalLM",
    "Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration",
)
GGUF_ARCHITECTURES = ("mistral3",)

source = interleaved_source


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    return llama_like(settings, "mistral", **_growth(settings))


def _growth(settings: Settings) -> dict[str, Any]:
    """Return by how much queries grow, and how many positions apart (Llama 4's temperature)."""
    if settings.is_gguf:
        rate_key, every_key = "attention.temperature_scale", "rope.scaling.original_context_length"
        rate, every = settings.get(rate_key), settings.get(every_key)
    else:
        rate_key, every_key = "llama_4_scaling_beta", "original_max_position_embeddings"
        given = settings.get("rope_parameters", {})
        given = given if isinstance(given, dict) else {}
        rate, every = given.get(rate_key), given.get(every_key)
    if not rate:
        return {}
    return {
        "query_growth": number_in(rate_key, rate, 1e-6, 1e3),
        "query_growth_every": int(number_in(every_key, every, 1, 1 << 28)),
    }
