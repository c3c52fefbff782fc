"""Gemma 2 (arXiv 2408.00118): norms before and after, soft caps on scores and logits, every other layer windowed."""

from __future__ import annotations

from forerun.model.arch.base.gemma import gemma_like, gemma_source
from forerun.model.arch.base.mapping import read_layers
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Gemma2ForCausalLM",)
GGUF_ARCHITECTURES = ("gemma2",)

source = gemma_source

_LARGEST = 46
"""Layers of the 27B, whose scores are scaled as if heads had the width of its embedding over their number."""


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }
    return gemma_like(settings, "gemma2", read_layers(settings, period=2), _LARGEST)
