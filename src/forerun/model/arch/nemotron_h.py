"""NVIDIA's Nemotron-H (arXiv 2504.03624): a layer is Mamba-2, attention, an MLP of squared ReLU, or experts alone.

Nemotron Nano 2 is of this kind, and with experts Nemotron 3 Nano. Attention has no positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.mamba import mamba_out, mamba_source, read_mamba
from forerun.model.arch.base.mapping import (
    expert_source,
    experts_of,
    llama_like,
    plain_source,
    read_experts,
)
from forerun.model.arch.base.recurrent import either, heads_by_layer
from forerun.model.arch.base.routing import routed, routed_source, shared_width
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ExpertsConfig, LayerConfig, ModelConfig, RecurrentConfig

HF_ARCHITECTURES = ("NemotronHForCausalLM",)
GGUF_ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")

_MIXER = "model.layers.{i}.mixer."
_HF_STATE = {
    "kernel": "conv_kernel",
    "state_heads": "mamba_num_heads",
    "state_key_heads": "n_groups",
    "key_dim": "ssm_state_size",
    "value_dim": "mamba_head_dim",
}
_KINDS: Mapping[str, str] = {
    **{"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"},
    **{name: name for name in ("mamba", "attention", "mlp", "moe")},
    **{"linear_attention": "mamba", "full_attention": "attention"},
}
_HF_NAMES = {
    "embed": "model.embeddings",
    "norm": "model.norm_f",
    "head": "lm_head",
    "attn_norm": "model.layers.{i}.norm",
    "mlp_norm": "model.layers.{i}.norm",
    "router": _MIXER + "gate",
    **{name: f"{_MIXER}{name}_proj" for name in ("q", "k", "v", "o")},
}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    kinds = _kinds(settings)
    settings.fixed["num_layers"] = len(kinds)
    if not settings.is_gguf:
        epsilon = settings.get("layer_norm_epsilon", 1e-5)
        settings.assumed = {"rms_norm_eps": epsilon, "mlp_hidden_act": "relu2"}
        settings.reject("mlp_hidden_act", "relu2")
        settings.reject("moe_latent_size", None)
    dense = settings.get(settings.keys["intermediate_size"])
    if isinstance(dense, list):
        settings.fixed["intermediate_size"] = max((n for n in dense if n), default=4)
    experts, shared = _experts(settings) if "moe" in kinds else (None, 0)
    mixer = LayerConfig(None, has_mlp=False)
    mlp = LayerConfig(None, has_mixer=False)
    by_kind = {"attention": mixer, "mlp": mlp}
    if "mamba" in kinds:
        by_kind["mamba"] = replace(mixer, recurrent=_state(settings))
    by_kind["moe"] = replace(
        mlp, experts=experts, has_mlp=shared > 0, intermediate_size=shared or None
    )
    layers = [by_kind[kind] for kind in kinds]
    return llama_like(settings, "nemotron_h", layers=layers, activation="relu2", gated_mlp=False)


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a weight lies: all of a layer is its mixer, and its one norm that of what it reads."""
    state = mamba_source(name, config, kind, _MIXER)
    if state is not None:
        return state
    if kind == "gguf" and name == "mlp_norm":
        return TensorSource("blk.{i}.attn_norm")
    if name == "o":
        attention = (
            TensorSource(_MIXER + "o_proj") if kind == "hf" else plain_source(name, config, kind)
        )
        return either(attention, mamba_out(kind, _MIXER))
    if kind == "gguf":
        return routed_source(name, config, kind)
    if name in _HF_NAMES:
        return TensorSource(_HF_NAMES[name])
    if name == "choice_bias":
        return TensorSource(_MIXER + "gate.e_score_correction_bias", suffixes=("", ".bias"))
    if name.startswith("expert_"):
        part = name.removeprefix("expert_")
        fused = replace(
            TensorSource(f"{_MIXER}experts.{part}_proj", suffixes=("", "_bias")),
            num_experts=experts_of(config).num_experts,
        )
        each = expert_source(name, config, kind, f"{_MIXER}experts.{{e}}.")
        return replace(each, otherwise=fused)
    shared = TensorSource(f"{_MIXER}shared_experts.{name}_proj")
    return either(shared, TensorSource(f"{_MIXER}{name}_proj"))


def _kinds(settings: Settings) -> list[str]:
    """Return what each layer is: mamba, attention, mlp or moe."""
    if settings.is_gguf:
        attends = heads_by_layer(settings)
        widths: Any = settings.get("feed_forward_length")
        if not isinstance(widths, list) or len(widths) != len(attends):
            raise LoadError(
                f"'{settings.prefix}feed_forward_length' is {short_repr(widths)}, but must be {len(attends)} numbers"
            )
        names = settings.checkpoint.names()
        mlps = [
            "moe" if f"blk.{i}.ffn_gate_inp.weight" in names else "mlp" for i in range(len(attends))
        ]
        return [
            mlp if width else "attention" if has else "mamba"
            for mlp, width, has in zip(mlps, widths, attends, strict=True)
        ]
    given = next(
        (k for k in ("layers_block_type", "layer_types") if settings.get(k) is not None),
        "hybrid_override_pattern",
    )
    kinds: Any = settings.get(given)
    if not isinstance(kinds, str | list) or not kinds or any(k not in _KINDS for k in kinds):
        raise LoadError(f"'{given}' is {short_repr(kinds)}, but must be of {', '.join(_KINDS)}")
    return [_KINDS[kind] for kind in kinds]


def _experts(settings: Settings) -> tuple[ExpertsConfig | None, int]:
    """Return the experts, and the width of what all rows share."""
    experts = read_experts(settings, count="n_routed_experts", is_scaled=True)
    if experts is None:
        raise LoadError("layers of experts need their number ('n_routed_experts')")
    if settings.is_gguf:
        return routed(settings, experts), shared_width(settings, 0)
    settings.assumed = {**settings.assumed, "norm_topk_prob": True}
    return routed(settings, experts), settings.width(
        "moe_shared_expert_intermediate_size", high=1 << 20
    )


def _state(settings: Settings) -> RecurrentConfig:
    if settings.is_gguf:
        return read_mamba(settings)
    width = settings.integer("mamba_num_heads", high=1 << 12) * settings.integer(
        "mamba_head_dim", high=1 << 12
    )
    limits = settings.number("time_step_min", 0.001, low=0.0), math.inf
    has_bias = settings.flag("use_conv_bias", True)
    return read_mamba(settings, _HF_STATE, width, conv_bias=has_bias, step_limits=limits)
