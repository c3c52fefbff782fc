"""GLM-4 (9B) and GLM-4-0414 (9B, 32B): half of each head turns, in neighbouring pairs; 0414 has norms before and after.

GGUF calls the former `chatglm`.
"""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import (
    fused_source,
    gate_up_source,
    interleaved_source,
    llama_like,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("GlmForCausalLM", "Glm4ForCausalLM")
GGUF_ARCHITECTURES = ("chatglm", "glm4")

_HF_NORMS = {
    "mlp_norm": "post_attention_layernorm",
    "attn_out_norm": "post_self_attn_layernorm",
    "mlp_out_norm": "post_mlp_layernorm",
}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {"partial_rotary_factor": 0.5}
    has_four = settings.checkpoint.architecture.lower().startswith("glm4")
    return llama_like(settings, "glm", norms="both" if has_four else "before")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies. Older GGUF files have q, k and v in one matrix."""
    if name in ("gate", "up"):
        return gate_up_source(name, config, kind)
    if kind == "hf" and name in _HF_NORMS:
        return TensorSource(f"model.layers.{{i}}.{_HF_NORMS[name]}")
    usual = interleaved_source(name, config, kind, ("hf", "gguf"))
    if kind == "hf" or name not in ("q", "k", "v"):
        return usual
    fused = fused_source(name, config, "blk.{i}.attn_qkv")
    return replace(usual, otherwise=replace(fused, is_interleaved=usual.is_interleaved))
