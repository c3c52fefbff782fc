"""Cohere's Command R and R7B: attention and MLP read one layer norm, and both are added; neighbouring features turn.

Command R+ norms each head of q and k by weights of its own. R7B (`Cohere2`) has windows in three layers of four, and
positions in those alone.
"""

from __future__ import annotations

from dataclasses import replace

from forerun.model.arch.base.mapping import (
    interleaved_source,
    llama_like,
    read_layers,
    turned_in_windows,
)
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("CohereForCausalLM", "Cohere2ForCausalLM")
GGUF_ARCHITECTURES = ("command-r", "cohere2")


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {"layer_norm_eps": 1e-5, "tie_word_embeddings": True}
    if settings.checkpoint.architecture.lower().startswith("cohere2"):
        settings.assumed |= {"sliding_window": 4096}
        layers = turned_in_windows(read_layers(settings, period=4))
    else:
        settings.assumed |= {"rope_theta": 500_000.0}
        layers = read_layers(settings)
    if settings.get("model_max_length") is not None:  # Command R's: the other key has a sixteenth
        settings.keys["max_position"] = "model_max_length"
    has_norms = settings.flag("use_qk_norm", False)
    if settings.is_gguf:
        has_norms = "blk.0.attn_q_norm.weight" in settings.checkpoint.names()
    return llama_like(
        settings,
        "cohere",
        layers=layers,
        layer_norm_eps="layer_norm_eps",
        norms="parallel",
        qk_norm="each" if has_norms else None,
        logits_divisor=1 / settings.number("logit_scale", None if settings.is_gguf else 0.0625),
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    usual = interleaved_source(name, config, kind, ("hf", "gguf"))
    if name in ("q_norm", "k_norm"):
        return replace(usual, is_interleaved=True, is_flat=True)
    return usual
