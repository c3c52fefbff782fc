"""DeepSeek-V2 and V3, GLM-4.7-Flash: attention to latents (MLA, arXiv 2405.04434), experts in groups, shared ones.

GGUF files have `attn_k_b` and `attn_v_b`, older ones `attn_kv_b`, whose half for keys is turned when it is read.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from forerun.core.errors import LoadError
from forerun.model.arch.base.mapping import llama_like, read_experts
from forerun.model.arch.base.recurrent import either
from forerun.model.arch.base.rope import given_scaling, ropes
from forerun.model.arch.base.routing import (
    after_dense,
    routed,
    routed_source,
    shared_width,
    with_experts,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ExpertsConfig, LatentConfig, LayerConfig, ModelConfig

_V2, _LITE = "DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM"
HF_ARCHITECTURES = (_V2, "DeepseekV3ForCausalLM", _LITE)
GGUF_ARCHITECTURES = ("deepseek2",)

_SIZES = {
    "latent_rank": ("kv_lora_rank", "attention.kv_lora_rank"),
    "rope_dim": ("qk_rope_head_dim", "rope.dimension_count"),
    "query_rank": ("q_lora_rank", "attention.q_lora_rank"),
    "value_dim": ("v_head_dim", "attention.value_length_mla"),
}
_ATTENTION = "model.layers.{i}.self_attn."


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    is_lite = settings.checkpoint.architecture == _LITE
    settings.assumed = {
        "first_k_dense_replace": int(is_lite),
        "norm_topk_prob": settings.checkpoint.architecture != _V2,
        "n_shared_experts": 1,
        "rms_norm_eps": 1e-5 if is_lite else 1e-6,
        "hidden_act": "silu",
    }
    latent = _latent(settings)
    sharper, scaling = _sharpness(settings)
    rope = ropes(settings, latent.rope_dim, scaling=scaling)[0]
    layers = [LayerConfig(rope)] * settings.size("num_layers")
    experts = read_experts(settings, count="n_routed_experts", is_scaled=True)
    if experts is not None:
        shared = shared_width(settings, experts.intermediate_size)
        layers = with_experts(layers, _routed(settings, experts), _has_experts(settings), shared)
    scale = sharper**2 / math.sqrt(latent.query_dim + latent.rope_dim)
    return llama_like(settings, "deepseek", layers=layers, latent=latent, attention_scale=scale)


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a weight lies: pairs that are rotated lie side by side, here halves do."""
    latent = config.latent
    assert latent is not None
    heads, is_hf = config.num_heads, kind == "hf"
    plain, turned, rank = latent.query_dim, latent.rope_dim, latent.rank
    if name in ("q_a", "q_a_norm", "kv_a_norm"):
        hf = {"q_a": "q_a_proj", "q_a_norm": "q_a_layernorm", "kv_a_norm": "kv_a_layernorm"}[name]
        return TensorSource(_ATTENTION + hf if is_hf else f"blk.{{i}}.attn_{name}")
    if name in ("q", "q_rope"):
        of_latents = "q_proj" if latent.query_rank is None else "q_b_proj"
        gguf = "blk.{i}.attn_q" if latent.query_rank is None else "blk.{i}.attn_q_b"
        rows = slice(0, plain) if name == "q" else slice(plain, plain + turned)
        stored = TensorSource(
            _ATTENTION + of_latents if is_hf else gguf, rows, plain + turned, heads
        )
    elif name in ("kv_a", "k_rope"):
        joined = _ATTENTION + "kv_a_proj_with_mqa" if is_hf else "blk.{i}.attn_kv_a_mqa"
        rows = slice(0, rank) if name == "kv_a" else slice(rank, rank + turned)
        stored = TensorSource(joined, rows, rank + turned)
    elif name in ("k_b", "v_b"):
        both = plain + latent.value_dim
        rows = slice(0, plain) if name == "k_b" else slice(plain, both)
        joined = _ATTENTION + "kv_b_proj" if is_hf else "blk.{i}.attn_kv_b"
        stored = TensorSource(
            joined, rows, both, heads, num_transposed=heads if name == "k_b" else 0
        )
        return either(TensorSource(f"blk.{{i}}.attn_{name}", num_experts=heads), stored)
    else:
        return routed_source(name, config, kind)
    return replace(stored, is_interleaved=name.endswith("_rope"), head_dim=turned)


def _latent(settings: Settings) -> LatentConfig:
    """Read the sizes of attention, and say what its one key and value are to the others."""
    is_gguf = settings.is_gguf
    settings.keys |= {field: keys[is_gguf] for field, keys in _SIZES.items()}
    nope = "qk_nope_head_dim"
    if is_gguf:
        nope = "attention.key_length_mla"
        if settings.get(nope) is None:
            nope, settings.keys["value_dim"] = "attention.key_length", "attention.value_length"
    elif not settings.flag("rope_interleave", True):
        raise LoadError("attention to latents whose rotated pairs are halves is not supported")
    sizes = {f: settings.width(settings.keys[f], high=1 << 16) for f in _SIZES if f != "query_rank"}
    rope_dim, rank = sizes["rope_dim"], sizes["latent_rank"]
    query_dim = settings.width(nope, high=1 << 16) - (rope_dim if is_gguf else 0)
    if query_dim < 1:
        raise LoadError(
            f"'{settings.prefix}{nope}' leaves nothing beside {rope_dim} rotated dimensions"
        )
    query_rank = None
    if settings.get(settings.keys["query_rank"]):
        query_rank = settings.width(settings.keys["query_rank"], high=1 << 16)
    settings.keys["query_dim"] = nope
    settings.keys["head_dim"] = settings.keys["rope_dim"]
    settings.fixed |= {"head_dim": rope_dim + rank, "num_kv_heads": 1}
    return LatentConfig(rank, rope_dim, query_dim, sizes["value_dim"], query_rank)


def _sharpness(settings: Settings) -> tuple[float, dict[str, Any]]:
    """Return what yarn makes scores sharper by, its root, and what to add to what the file says of scaling."""
    if settings.is_gguf:
        # Converters have written a tenth of it, and llama.cpp takes `mscale` to be the same.
        weight = 10 * settings.number("rope.scaling.yarn_log_multiplier", 0.0, low=0.0)
        factor = settings.number("rope.scaling.factor", 1.0)
        scaling = {"mscale": weight, "mscale_all_dim": weight} if weight else {}
    else:
        given, scaling = given_scaling(settings), {}
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind == "default":
            return 1.0, scaling
        weight, factor = given.get("mscale_all_dim") or 0.0, given.get("factor") or 1.0
    return (0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0), scaling


def _routed(settings: Settings, experts: ExpertsConfig) -> ExpertsConfig:
    """Return the experts: V2's softmax, or greedy without groups; V3's sigmoid."""
    if settings.is_gguf:
        return routed(settings, experts, scoring="softmax")
    if settings.checkpoint.architecture != _V2:
        return routed(settings, experts)
    method = settings.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise LoadError(
            f"topk_method '{method}' is not supported: greedy, group_limited_greedy are"
        )
    experts = routed(settings, experts, scoring="softmax", renormalized=False)
    return replace(experts, num_groups=1, num_active_groups=1) if method == "greedy" else experts


def _has_experts(settings: Settings) -> list[bool]:
    """Return which layers have experts."""
    kinds = settings.get("mlp_layer_types")
    if isinstance(kinds, list) and len(kinds) == settings.size("num_layers"):
        return [kind == "sparse" for kind in kinds]
    return after_dense(settings)
