"""Gemma 3n's text half: Gemma 3 with four streams of states (AltUp), LAuReL, sparse MLPs and per-layer embeddings.

Per-layer embeddings and shared keys and values are those of Gemma 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.gemma import (
    ASSUMED,
    PER_LAYER_NAMES,
    gemma_like,
    per_layer_width,
    sharing_kv,
)
from forerun.model.arch.base.mapping import plain_source, read_layers
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig, StreamsConfig

HF_ARCHITECTURES = ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")
GGUF_ARCHITECTURES = ("gemma3n",)

_NAMES = PER_LAYER_NAMES | {
    "altup_proj": ("model.altup_projections.{e}", "altup_proj"),
    "altup_unembed": ("model.altup_unembed_projections.{e}", "altup_unembd_proj"),
    "altup_router": ("altup.modality_router", "altup_router"),
    "altup_router_norm": ("altup.router_norm", "altup_router_norm"),
    "altup_predict": ("altup.prediction_coefs", "altup_predict_coef"),
    "altup_correct": ("altup.correction_coefs", "altup_correct_coef"),
    "altup_scale": ("altup.correct_output_scale", "altup_correct_scale"),
    "laurel_left": ("laurel.linear_left", "laurel_l"),
    "laurel_right": ("laurel.linear_right", "laurel_r"),
    "laurel_norm": ("laurel.post_laurel_norm", "laurel_post_norm"),
}
_OF_THE_MODEL = ("altup_proj", "altup_unembed")
_FLAT = ("altup_router", "altup_predict", "altup_correct")
_SPARSE_LAYERS, _SPARSITY = 10, 0.95
"""Of deeper models whose file says nothing."""
_OWN_KEYS = 20
"""Layers with keys and values of their own where a GGUF says nothing."""
_CAP = 30.0
"""Of logits, where a GGUF says nothing."""


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint. Raises LoadError."""
    is_gguf = settings.is_gguf
    settings.assumed = {
        **ASSUMED,
        "vocab_size": 262_400,
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 35,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "sliding_window": 512,
        "final_logit_softcapping": _CAP,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "num_kv_shared_layers": 15,
    }
    settings.reject("altup.active_idx" if is_gguf else "altup_active_idx", 0)
    if not is_gguf:
        settings.reject("altup_correct_scale", True)
    widths, cutoffs = settings.by_layer("intermediate_size"), _cutoffs(settings)
    settings.fixed["intermediate_size"] = widths[0]
    layers = [
        replace(
            layer,
            intermediate_size=None if width == widths[0] else width,
            sparsity_cutoff=sparsity_cutoff,
        )
        for layer, width, sparsity_cutoff in zip(
            read_layers(settings, period=5, local_theta=10_000.0, is_local_plain=True),
            widths,
            cutoffs,
            strict=True,
        )
    ]
    own = max(len(layers) - _OWN_KEYS, 0) if is_gguf else None
    config = gemma_like(
        settings,
        "gemma3n",
        sharing_kv(settings, layers, own),
        None,
        qk_norm="head",
        value_norm=True,
        streams=_streams(settings),
        per_layer_width=per_layer_width(settings),
        per_layer_vocab=_table_rows(settings),
    )
    if config.per_layer_width is None:
        raise LoadError(f"{settings.described('per_layer_width')}, but Gemma 3n needs it")
    if is_gguf and config.logits_cap is None:
        config = replace(config, logits_cap=_CAP)
    return config


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    if name not in _NAMES:
        return plain_source(name, config, kind)
    is_gguf = kind == "gguf"
    layer = "blk.{i}." if is_gguf else "model.layers.{i}."
    is_of_layer = name not in _OF_THE_MODEL and not name.startswith("per_layer_")
    found = TensorSource((layer if is_of_layer else "") + _NAMES[name][is_gguf])
    if name in _OF_THE_MODEL:
        assert config.streams is not None
        return replace(found, num_experts=config.streams.num - 1)
    if name == "altup_router_norm":
        return replace(found, factor=1 / config.hidden_size)
    if name == "altup_scale" and not is_gguf:
        return replace(found, suffixes=("", ".bias"))
    return replace(found, is_flat=name in _FLAT)


def _streams(settings: Settings) -> StreamsConfig:
    key = "altup.num_inputs" if settings.is_gguf else "altup_num_inputs"
    num = settings.integer(key, 4, low=2, high=8)
    if settings.is_gguf:
        rank = settings.checkpoint.tensor("blk.0.laurel_l.weight").shape[0]
    else:
        rank = settings.integer("laurel_rank", 64, high=1 << 14)
    if rank % 4:
        raise LoadError(f"the rank of LAuReL is {rank}, but must be a multiple of 4")
    return StreamsConfig(num, rank)


def _table_rows(settings: Settings) -> int:
    """Return the tokens that have embeddings for each layer."""
    if settings.is_gguf:
        return settings.checkpoint.tensor("per_layer_token_embd.weight").shape[0]
    return settings.integer("vocab_size_per_layer_input", high=1 << 24)


def _cutoffs(settings: Settings) -> Sequence[float | None]:
    """Return where each layer's gates are cut off, in standard deviations above their mean; None: they are not."""
    num_layers = settings.size("num_layers")
    usual = _SPARSE_LAYERS if num_layers > _SPARSE_LAYERS else 0
    key = "activation_sparsity_scale" if settings.is_gguf else "activation_sparsity_pattern"
    given = settings.get(key)
    if given is None:
        sparsity_cutoff = NormalDist().inv_cdf(_SPARSITY)
        return [sparsity_cutoff] * usual + [None] * (num_layers - usual)
    values = given if isinstance(given, list) else [given] * num_layers
    is_right = len(values) == num_layers and all(
        isinstance(value, int | float) and (settings.is_gguf or 0 <= value < 1) for value in values
    )
    if not is_right or any(value != value or value > 1e6 for value in values):
        allowed = "numbers" if settings.is_gguf else "numbers from 0 to below 1"
        raise LoadError(f"'{key}' is {short_repr(given)}, but must be {num_layers} {allowed}")
    if settings.is_gguf:
        return [None if value < -1e6 else float(value) for value in values]
    return [NormalDist().inv_cdf(value) if value > 0 else None for value in values]
