"""gpt-oss (arXiv 2508.10925): experts with a clamped gate and biases, attention sinks, every other layer windowed."""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import (
    experts_of,
    llama_like,
    plain_source,
    read_experts,
    read_layers,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import SWIGLU_ALPHA, SWIGLU_LIMIT, ModelConfig

HF_ARCHITECTURES = ("GptOssForCausalLM",)
GGUF_ARCHITECTURES = ("gpt-oss",)


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    settings.assumed = {
        "rope_theta": 150_000.0,
        "rope_scaling": {**yarn, "truncate": False},
        "sliding_window": 128,
    }
    if not settings.is_gguf:
        settings.reject("swiglu_limit", SWIGLU_LIMIT)
        settings.reject("swiglu_alpha", SWIGLU_ALPHA)
    experts = read_experts(settings, size="intermediate_size")
    # The GGUF has no key for it: the band of its yarn has bounds that are not rounded.
    scaling = {"truncate": False} if settings.is_gguf else {}
    layers = read_layers(settings, period=2, **scaling)
    return llama_like(
        settings,
        "gpt_oss",
        layers=[replace(layer, experts=experts, has_mlp=experts is None) for layer in layers],
        activation="swiglu_oai",
        attention_sinks=True,
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies: Hugging Face interleaves the rows of gate and up."""
    if kind == "gguf":
        renamed = {"mlp_norm": "post_attention_norm", "sinks": "attn_sinks"}.get(name)
        return TensorSource(f"blk.{{i}}.{renamed}") if renamed else plain_source(name, config, kind)
    if name == "router":
        return TensorSource("model.layers.{i}.mlp.router")
    if not name.startswith("expert_"):
        return plain_source(name, config, kind)
    experts = experts_of(config)
    stacked = TensorSource(
        "model.layers.{i}.mlp.experts.down_proj", num_experts=experts.num_experts
    )
    if name != "expert_down":
        stacked = replace(
            stacked,
            name="model.layers.{i}.mlp.experts.gate_up_proj",
            part=slice(name == "expert_up", None, 2),
            num_rows=2 * experts.intermediate_size,
        )
    # In MXFP4 rows are outputs; the unpacked floats are stored the other way round.
    stacked = replace(stacked, suffixes=(".weight", "_bias"))
    return replace(stacked, otherwise=replace(stacked, suffixes=("", "_bias"), is_transposed=True))
