"""IBM Granite 3 and 4: llama with multipliers on embeddings, residuals, scores and logits; dense or with experts.

Granite 4 has an MLP that all experts share, in some models no rotary embedding, and in its hybrids Mamba-2
(arXiv 2405.21060) in most layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.model.arch.base.mamba import mamba_out, mamba_source, read_mamba, step_limits
from forerun.model.arch.base.mapping import experts_of, interleaved_source, llama_like, read_experts
from forerun.model.arch.base.recurrent import attends, either, heads_by_layer, mixed
from forerun.model.arch.base.rope import ropes
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import LayerConfig, ModelConfig, RecurrentConfig

_HYBRID = "GraniteMoeHybridForCausalLM"
_SHARED = "GraniteMoeSharedForCausalLM"
HF_ARCHITECTURES = ("GraniteForCausalLM", "GraniteMoeForCausalLM", _SHARED, _HYBRID)
GGUF_ARCHITECTURES = ("granite", "granitemoe", "granitehybrid")

_HF_STATE = {
    "kernel": "mamba_d_conv",
    "state_heads": "mamba_n_heads",
    "state_key_heads": "mamba_n_groups",
    "key_dim": "mamba_d_state",
    "value_dim": "mamba_expand",
}
_MAMBA = "model.layers.{i}.mamba."

_HF_KEYS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
_GGUF_KEYS = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    architecture, is_gguf = settings.checkpoint.architecture, settings.is_gguf
    has_attention = _has_attention(settings)
    experts = None
    is_dense = architecture in ("granite", "GraniteForCausalLM")
    if not is_dense:
        experts = read_experts(settings, size="intermediate_size")
    shared = "expert_shared_feed_forward_length" if is_gguf else "shared_intermediate_size"
    has_shared = architecture in (_SHARED, _HYBRID) or (is_gguf and bool(settings.get(shared)))
    if has_shared and (experts or not is_gguf):
        settings.keys["intermediate_size"] = shared
    layer = LayerConfig(None, None, experts, has_mlp=experts is None or has_shared)
    if _is_rotary(settings):
        layer = replace(layer, rope=ropes(settings, settings.sizes()["head_dim"])[0])
    family = "granite" if is_dense else "granitemoe"
    layers = [layer] * settings.size("num_layers")
    if not all(has_attention):
        layers = mixed(layers, has_attention, _state(settings))
    config = llama_like(settings, family, layers=layers)
    return replace(config, **_multipliers(settings, config.scale))


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies: beside experts, and in Granite 4, gate and up are one tensor."""
    state = mamba_source(name, config, kind, _MAMBA)
    if state is not None:
        return state
    usual = interleaved_source(name, config, kind)
    if name == "o" and config.is_recurrent:
        return either(usual, mamba_out(kind, _MAMBA))
    has_experts = bool(config.layers) and config.layers[0].experts is not None
    if kind == "gguf":
        is_shared = has_experts and name in ("gate", "up", "down")
        return TensorSource(f"blk.{{i}}.ffn_{name}_shexp") if is_shared else usual
    if config.family == "granitemoe" and name in ("gate", "up", "down"):
        return _halves(name, config.intermediate_size, "shared_mlp.")
    moe = "model.layers.{i}.block_sparse_moe."
    if name == "router":
        return TensorSource(f"{moe}router.layer", otherwise=TensorSource(f"{moe}router"))
    if not name.startswith("expert_"):
        return usual
    experts = experts_of(config)
    part = name.removeprefix("expert_")
    stored = _halves(part, experts.intermediate_size, "block_sparse_moe.")
    stored = replace(stored, num_experts=experts.num_experts)
    last = "down_proj" if part == "down" else "gate_up_proj"
    fused = replace(stored, name=f"{moe}experts.{last}", suffixes=("", "_bias"))
    return replace(stored, otherwise=fused)


def _halves(part: str, inner: int, where: str) -> TensorSource:
    """Return gate or up in a matrix of both, or down, which lies alone."""
    name = f"model.layers.{{i}}.{where}"
    if part == "down":
        return TensorSource(f"{name}output_linear")
    rows = slice(0, inner) if part == "gate" else slice(inner, 2 * inner)
    return TensorSource(f"{name}input_linear", rows, 2 * inner)


def _multipliers(settings: Settings, usual_scale: float) -> dict[str, Any]:
    embedding, residual, attention, logits = _GGUF_KEYS if settings.is_gguf else _HF_KEYS
    return {
        "embedding_multiplier": settings.number(embedding, 1.0),
        "residual_multiplier": settings.number(residual, 1.0),
        "attention_scale": settings.number(attention, usual_scale if settings.is_gguf else 1.0),
        "logits_divisor": settings.number(logits, 1.0),
    }


def _is_rotary(settings: Settings) -> bool:
    """Return whether positions are rotary; Granite 4 has none otherwise."""
    if settings.is_gguf:
        return settings.flag("rope.scaling.finetuned", True)
    if settings.checkpoint.architecture != _HYBRID:
        return True
    return settings.text("position_embedding_type", "nope") == "rope"


def _has_attention(settings: Settings) -> list[bool]:
    """Return which layers have attention; the others are Mamba layers."""
    num_layers = settings.size("num_layers")
    if settings.checkpoint.architecture == "granitehybrid":
        return heads_by_layer(settings)
    if settings.checkpoint.architecture == _HYBRID:
        return attends(settings, [False] * num_layers)
    return [True] * num_layers


def _state(settings: Settings) -> RecurrentConfig:
    if settings.is_gguf:
        return read_mamba(settings)
    width = settings.integer(_HF_STATE["value_dim"], high=1 << 20) * settings.size("hidden_size")
    has_bias = settings.flag("mamba_conv_bias", True)
    limits = step_limits(settings)
    return read_mamba(settings, _HF_STATE, width, conv_bias=has_bias, step_limits=limits)
