"""Routers that do more than a softmax: biases that choose, groups, scales; and what lies beside and before experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from forerun.core.errors import LoadError
from forerun.model.arch.base.mapping import plain_source
from forerun.model.arch.base.recurrent import either
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ExpertsConfig, LayerConfig, ModelConfig

Scoring = Literal["softmax", "sigmoid"]
_SCORINGS: dict[int, Scoring] = {1: "softmax", 2: "sigmoid"}
"""As GGUF numbers them."""
_MLP = "model.layers.{i}.mlp."


def routed(
    settings: Settings,
    experts: ExpertsConfig,
    *,
    scoring: Scoring = "sigmoid",
    bias: str = "e_score_correction_bias",
    sum_offset: float = 1e-20,
    renormalized: bool | None = None,
) -> ExpertsConfig:
    """Return experts with what the file says of their router; `bias` ends the name of Hugging Face's. Raises LoadError.

    `renormalized` is what holds whatever the file says, `scoring` what holds where a GGUF does not say.
    """
    names, is_gguf = settings.checkpoint.names(), settings.is_gguf
    ends = ".exp_probs_b.bias" if is_gguf else bias
    number = settings.integer("expert_gating_func", 0, low=0, high=16) if is_gguf else 0
    if number and number not in _SCORINGS:
        raise LoadError(f"'{settings.prefix}expert_gating_func' is {number}, but must be 1 or 2")
    scoring = _SCORINGS.get(number, scoring)
    weighted = ("expert_weights_norm", "expert_weights_scale", "expert_group_count")
    keys = (*weighted, "expert_group_used_count")
    if not is_gguf:
        keys = ("norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group")
    norm, scale, groups, active = keys
    num_groups = settings.integer(groups, 1, high=experts.num_experts)
    num_active_groups = settings.integer(active, num_groups, high=num_groups)
    each = experts.num_experts // num_groups
    if experts.num_experts % num_groups or each * num_active_groups < experts.num_active:
        raise LoadError(
            f"{num_active_groups} of {num_groups} groups do not divide {experts.num_experts} experts, or have fewer "
            f"than the {experts.num_active} that a row chooses ('{settings.prefix}{groups}')"
        )
    return replace(
        experts,
        scoring=scoring,
        renormalized=settings.flag(norm, False) if renormalized is None else renormalized,
        has_choice_bias=any(name.endswith(ends) for name in names),
        sum_offset=sum_offset,
        scale=settings.number(scale, 1.0, low=0.0) or 1.0,
        num_groups=num_groups if num_active_groups < num_groups else 1,
        num_active_groups=num_active_groups if num_active_groups < num_groups else 1,
        group_best=2 if scoring == "sigmoid" else 1,
    )


def shared_width(settings: Settings, width: int, key: str = "n_shared_experts") -> int:
    """Return the width of the experts that all rows share, each `width` wide: 0 if there are none."""
    if not settings.is_gguf:
        return width * settings.integer(key, 0, low=0, high=1 << 10)
    checkpoint = settings.checkpoint
    shared = (name for name in checkpoint.names() if name.endswith("ffn_up_shexp.weight"))
    name = next(iter(shared), None)
    return 0 if name is None else checkpoint.tensor(name).shape[0]


def with_experts(
    layers: Sequence[LayerConfig], experts: ExpertsConfig, has: Sequence[bool], shared: int = 0
) -> list[LayerConfig]:
    """Return the layers with experts, and an MLP of width `shared` beside them, where they `has` them."""
    return [
        replace(layer, experts=experts, has_mlp=shared > 0, intermediate_size=shared or None)
        if moe
        else layer
        for layer, moe in zip(layers, has, strict=True)
    ]


def after_dense(settings: Settings, key: str = "first_k_dense_replace") -> list[bool]:
    """Return which layers have experts: all behind the first ones, whose number is Hugging Face's `key`."""
    key = "leading_dense_block_count" if settings.is_gguf else key
    first = settings.integer(key, 0, low=0, high=1 << 12)
    return [i >= first for i in range(settings.size("num_layers"))]


def routed_source(
    name: str, config: ModelConfig, kind: Kind, bias: str = "gate.e_score_correction_bias"
) -> TensorSource:
    """Return where a weight of such a layer lies: the MLP is shared, or a dense layer's own. It is an `Arch.source`."""
    if name == "choice_bias":
        stored = TensorSource(_MLP + bias, is_flat=True, suffixes=("", ".bias"))
        gguf = replace(stored, name="blk.{i}.exp_probs_b", suffixes=(".bias", ".bias.bias"))
        return gguf if kind == "gguf" else stored
    usual = plain_source(name, config, kind)
    if name not in ("gate", "up", "down"):
        return usual
    shared = f"{_MLP}shared_experts.{name}_proj", f"blk.{{i}}.ffn_{name}_shexp"
    return either(TensorSource(shared[kind == "gguf"]), usual)
