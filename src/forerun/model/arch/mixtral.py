"""Mixtral (arXiv 2401.04088): Mistral with 8 experts in each layer, two a row. GGUF calls it `llama`."""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import (
    expert_source,
    llama_like,
    plain_source,
    read_experts,
    read_layers,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("MixtralForCausalLM",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {"rope_theta": 1_000_000.0}
    experts = read_experts(settings, size="intermediate_size")
    layers = [
        replace(layer, experts=experts, has_mlp=experts is None) for layer in read_layers(settings)
    ]
    return llama_like(settings, "mixtral", layers=layers)


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    stored = "model.layers.{i}.block_sparse_moe."
    if name == "router":
        return TensorSource(f"{stored}gate", otherwise=plain_source(name, config, kind))
    if name.startswith("expert_"):
        return expert_source(name, config, kind, each=f"{stored}experts.{{e}}.", parts=_PARTS)
    return plain_source(name, config, kind)
