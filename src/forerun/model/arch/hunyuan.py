"""Tencent's Hunyuan (dense, 0.5B to 7B): each head of q and k is normed after it has turned."""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import llama_like, plain_source
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("HunYuanDenseV1ForCausalLM",)
GGUF_ARCHITECTURES = ("hunyuan-dense",)

_HF_NORMS = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}

config = partial(llama_like, family="hunyuan", qk_norm="head", qk_norm_after_rope=True)


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    if kind == "hf" and name in _HF_NORMS:
        return TensorSource(f"model.layers.{{i}}.self_attn.{_HF_NORMS[name]}")
    return plain_source(name, config, kind)
