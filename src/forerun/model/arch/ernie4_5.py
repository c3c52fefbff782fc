"""Baidu's ERNIE 4.5: interleaved rotations; dense, or with experts that a bias helps to choose and shared ones."""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import llama_like, read_experts, read_layers
from forerun.model.arch.base.recurrent import either
from forerun.model.arch.base.routing import routed, routed_source, shared_width, with_experts
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Ernie4_5_MoeForCausalLM", "Ernie4_5ForCausalLM")
GGUF_ARCHITECTURES = ("ernie4_5-moe", "ernie4_5")


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    is_gguf = settings.is_gguf
    settings.assumed = {"rope_theta": 500_000.0, "tie_word_embeddings": True}
    layers = read_layers(settings)
    experts = read_experts(
        settings, count="moe_num_experts", active="moe_k", size="moe_intermediate_size"
    )
    if experts is not None:
        has = _has_experts(settings)
        shared = shared_width(settings, experts.intermediate_size, "moe_num_shared_experts")
        experts = routed(settings, experts, scoring="softmax", sum_offset=1e-12, renormalized=True)
        layers = with_experts(layers, experts, has, shared)
    return llama_like(settings, "ernie4_5", layers=layers, activation="silu" if is_gguf else None)


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a weight lies; the halves of q and k heads are interleaved in folders, too."""
    statics = "moe_statics.e_score_correction_bias"
    stored = routed_source(name, config, kind, statics)
    if name == "choice_bias" and kind == "hf":
        return either(stored, replace(stored, name=stored.name.replace(statics, f"gate.{statics}")))
    return replace(stored, is_interleaved=name in ("q", "k"))


def _has_experts(settings: Settings) -> list[bool]:
    """Return which layers have experts: every so manieth, from the first that has to the last."""
    keys = ("moe_layer_start_index", "moe_layer_interval")
    if settings.is_gguf:
        keys = ("leading_dense_block_count", "interleave_moe_layer_step")
    num_layers = settings.size("num_layers")
    first = settings.integer(keys[0], 1, low=0, high=1 << 12)
    step = settings.integer(keys[1], 1, high=1 << 12)
    last = num_layers - 1
    if not settings.is_gguf:
        last = settings.integer("moe_layer_end_index", -1, low=-1, high=1 << 12) % num_layers
    return [first <= i <= last and (i + 1) % step == 0 for i in range(num_layers)]
