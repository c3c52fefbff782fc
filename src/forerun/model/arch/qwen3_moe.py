"""Qwen3's mixtures of experts (30B-A3B and larger), Qwen3-VL's too: experts in all layers but those that are listed."""

from __future__ import annotations

from dataclasses import replace

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.mapping import llama_like, plain_source, read_experts, read_layers
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration")
GGUF_ARCHITECTURES = ("qwen3moe", "qwen3vlmoe")

source = plain_source


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    layers = read_layers(settings)
    sees = "text_config" in settings.checkpoint.config
    is_renormalized = settings.is_gguf or sees or settings.flag("norm_topk_prob", False)
    experts = read_experts(settings, renormalized=is_renormalized)
    dense = settings.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise LoadError(f"'mlp_only_layers' is {short_repr(dense)}, but must be a list of layers")
    step = settings.integer("decoder_sparse_step", 1, high=1 << 16)
    layers = [
        layer
        if experts is None or i in dense or (i + 1) % step
        else replace(layer, experts=experts, has_mlp=False)
        for i, layer in enumerate(layers)
    ]
    return llama_like(settings, "qwen3_moe", layers=layers, qk_norm="head")
