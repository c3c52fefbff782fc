"""What the Gemmas share: scaled embeddings, norms by 1 + w before and after a sublayer, a scale of scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.core.errors import LoadError
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
PER_LAYER_NAMES: dict[str, tuple[str, str]] = {
    "per_layer_embed": ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    "per_layer_proj": ("model.per_layer_model_projection", "per_layer_model_proj"),
    "per_layer_norm": ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    "inp_gate": ("per_layer_input_gate", "inp_gate"),
    "inp_proj": ("per_layer_projection", "proj"),
    "inp_norm": ("post_per_layer_input_norm", "post_norm"),
}
"""Tensors of per-layer embeddings in a folder and in a GGUF; of a layer, without its prefix."""


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


def per_layer_width(settings: Settings) -> int | None:
    """Return the width of per-layer embeddings, None without them. Raises LoadError."""
    is_gguf = settings.is_gguf
    key = "embedding_length_per_layer_input" if is_gguf else "hidden_size_per_layer_input"
    settings.keys["per_layer_width"] = key
    return settings.integer(key, 0, low=0, high=1 << 16) or None


def sharing_kv(
    settings: Settings, layers: list[LayerConfig], default: int | None = 0
) -> list[LayerConfig]:
    """Let the last layers read the keys and values of the last of their kind before them.

    `default` is how many do where the file does not say it. Raises LoadError.
    """
    key = "attention.shared_kv_layers" if settings.is_gguf else "num_kv_shared_layers"
    first = len(layers) - settings.integer(key, default, low=0, high=len(layers) - 1)
    shared = []
    for layer in layers[first:]:
        is_local = layer.sliding_window is not None
        alike = [i for i in range(first) if (layers[i].sliding_window is not None) == is_local]
        if not alike:
            raise LoadError(f"'{key}' leaves no layer whose keys and values the last could share")
        shared.append(replace(layer, shares_kv_of=alike[-1], has_values=True))
    return [*layers[:first], *shared]
