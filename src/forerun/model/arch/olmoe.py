"""OLMoE (arXiv 2409.02060): 64 small experts, whose weights stay as the softmax over all has them."""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import llama_like, plain_source, read_experts, read_layers
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("OlmoeForCausalLM",)
GGUF_ARCHITECTURES = ("olmoe",)

source = plain_source


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint. Clamped queries, keys and values are refused."""
    settings.reject("attention.clamp_kqv" if settings.is_gguf else "clip_qkv", None)
    is_renormalized = not settings.is_gguf and settings.flag("norm_topk_prob", False)
    experts = read_experts(settings, size="intermediate_size", renormalized=is_renormalized)
    layers = [
        replace(layer, experts=experts, has_mlp=experts is None) for layer in read_layers(settings)
    ]
    return llama_like(settings, "olmoe", layers=layers, qk_norm="whole")
