"""What the Gemmas share: scaled embeddings, norms by 1 + w before and after a sublayer, a scale of scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.model.arch.base.mapping import llama_like, plain_source
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import LayerConfig, ModelConfig

ASSUMED: Mapping[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
"""What the configs of Gemma 3 and 4 mean where they leave it out."""


def gemma_like(
    settings: Settings,
    family: str,
    layers: Sequence[LayerConfig],
    largest: int | None,
    **differences: Any,
) -> ModelConfig:
    """Return a config; `largest` is the number of layers of the one model with a scale of its own.

    None: scores are not scaled at all (Gemma 4). Raises LoadError.
    """
    is_gguf = settings.is_gguf
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    attention_cap, logits_cap = (
        None if settings.get(cap) is None else settings.number(cap) for cap in caps
    )
    config = llama_like(
        settings,
        family,
        layers=layers,
        activation="gelu_tanh" if is_gguf else settings.activation("hidden_activation"),
        norms="both",
        attention_cap=attention_cap,
        logits_cap=logits_cap,
        **differences,
    )
    width = config.head_dim
    if largest is None:
        width = 1
    elif not is_gguf:
        width = settings.integer("query_pre_attn_scalar", high=1 << 18)
    elif config.num_layers == largest:  # the file does not say it
        width = config.hidden_size // config.num_heads
    return replace(
        config, embedding_multiplier=math.sqrt(config.hidden_size), attention_scale=width**-0.5
    )


def gemma_source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return a plain source; a Hugging Face folder has norms less 1. It is an `Arch.source`."""
    is_less = kind == "hf" and name.endswith("norm")
    return replace(plain_source(name, config, kind), offset=1.0 if is_less else 0.0)
