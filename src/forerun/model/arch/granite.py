"""IBM Granite 3 and 4: llama with multipliers on embeddings, residuals, scores and logits; dense or with experts.

Granite 4 has an MLP that all experts share, and in some models no rotary embedding. Mamba layers are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.core.errors import LoadError
from forerun.model.arch.base.mapping import (
    experts_of,
    interleaved_source,
    llama_like,
    read_experts,
)
from forerun.model.arch.base.rope import ropes
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import LayerConfig, ModelConfig

_HYBRID = "GraniteMoeHybridForCausalLM"
_SHARED = "GraniteMoeSharedForCausalLM"
HF_ARCHITECTURES = ("GraniteForCausalLM", "GraniteMoeForCausalLM", _SHARED, _HYBRID)
GGUF_ARCHITECTURES = ("granite", "granitemoe", "granitehybrid")

_HF_KEYS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
_GGUF_KEYS = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    architecture, is_gguf = settings.checkpoint.architecture, settings.is_gguf
    _reject_mamba(settings)
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
    config = llama_like(settings, family, layers=[layer] * settings.size("num_layers"))
    return replace(config, **_multipliers(settings, config.scale))


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies: beside experts, and in Granite 4, gate and up are one tensor."""
    usual = interleaved_source(name, config, kind)
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


def _reject_mamba(settings: Settings) -> None:
    """Raise LoadError naming the layers of a hybrid that are no attention."""
    if settings.checkpoint.architecture == "granitehybrid":
        heads = settings.get("attention.head_count_kv")
        mamba = [i for i, n in enumerate(heads) if n == 0] if isinstance(heads, list) else []
    elif settings.checkpoint.architecture == _HYBRID:
        kinds = settings.get("layer_types", ["mamba"] * settings.size("num_layers"))
        if not isinstance(kinds, list):
            raise LoadError("'layer_types' must be a list of texts")
        mamba = [i for i, kind in enumerate(kinds) if kind not in ("attention", "full_attention")]
    else:
        return
    if mamba:
        listed = ", ".join(map(str, mamba[:8])) + (", ..." if len(mamba) > 8 else "")
        raise LoadError(
            f"Mamba layers are not supported, but layers {listed} are: take a Granite without them"
        )
