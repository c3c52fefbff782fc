"""ByteDance's Seed-OSS: the llama-like shape with biases on q, k and v, at 512k tokens."""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import llama_like, plain_source
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("SeedOssForCausalLM",)
GGUF_ARCHITECTURES = ("seed_oss",)

config = partial(llama_like, family="seed_oss")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    if kind == "gguf" and name == "mlp_norm":
        return TensorSource("blk.{i}.post_attention_norm")
    return plain_source(name, config, kind)
