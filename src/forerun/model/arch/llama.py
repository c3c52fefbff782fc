"""Llama 2 and 3, SmolLM2, TinyLlama, CodeLlama, InternLM3: the llama-like shape itself. GGUF interleaves q and k.

GGUF calls Mistral and Mixtral so, too.
"""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import (
    interleaved_source,
    llama_like,
    read_experts,
    read_layers,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("LlamaForCausalLM", "InternLM3ForCausalLM")
GGUF_ARCHITECTURES = ("llama",)

source = interleaved_source


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    layers = read_layers(settings)
    experts = read_experts(settings) if settings.is_gguf else None
    if experts is not None:
        layers = [replace(layer, experts=experts, has_mlp=False) for layer in layers]
    return llama_like(settings, "llama", layers=layers)
