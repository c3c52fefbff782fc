"""Phi-3, 3.5, 4-mini: gated; q, k, v in one matrix, gate and up in another; longrope.

Its two lists of factors are for contexts up to the first length and for longer ones. The context that is served
chooses, as in llama.cpp and vLLM, not a text's length, as in transformers: keys must not change while a text grows.
"""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import (
    fused_source,
    gate_up_source,
    llama_like,
    plain_source,
)
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Phi3ForCausalLM",)
GGUF_ARCHITECTURES = ("phi3",)

config = partial(llama_like, family="phi3")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    if name in ("q", "k", "v"):
        fused = "model.layers.{i}.self_attn.qkv_proj" if kind == "hf" else "blk.{i}.attn_qkv"
        return fused_source(name, config, fused)
    if name in ("gate", "up"):
        return gate_up_source(name, config, kind)
    return plain_source(name, config, kind)
