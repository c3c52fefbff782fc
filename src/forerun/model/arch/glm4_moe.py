"""GLM-4.5 and its kin: experts that sigmoids choose, one that all rows share, half of each head rotated."""

from __future__ import annotations

from forerun.core.errors import LoadError
from forerun.model.arch.base.mapping import llama_like, read_experts, read_layers
from forerun.model.arch.base.routing import (
    after_dense,
    routed,
    routed_source,
    shared_width,
    with_experts,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Glm4MoeForCausalLM",)
GGUF_ARCHITECTURES = ("glm4moe",)


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {
        "partial_rotary_factor": 0.5,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
    }
    experts = read_experts(settings, count="n_routed_experts", is_scaled=True)
    if experts is None:
        raise LoadError(f"{settings.checkpoint.architecture} needs experts")
    shared, experts = shared_width(settings, experts.intermediate_size), routed(settings, experts)
    layers = with_experts(read_layers(settings), experts, after_dense(settings), shared)
    norm = ".attn_q_norm.weight" if settings.is_gguf else ".q_norm.weight"
    has_norms = any(name.endswith(norm) for name in settings.checkpoint.names())
    return llama_like(settings, "glm4_moe", layers=layers, qk_norm="head" if has_norms else None)


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a weight lies."""
    if name == "mlp_norm" and kind == "gguf":
        return TensorSource("blk.{i}.post_attention_norm")
    return routed_source(name, config, kind)
