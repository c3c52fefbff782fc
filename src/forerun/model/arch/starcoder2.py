"""StarCoder2 (arXiv 2402.19173): layer norm, biases everywhere and a plain MLP, with rotary positions and a window.

GGUF files do not say the window, and llama.cpp has none.
"""

from __future__ import annotations

from forerun.model.arch.base.mapping import llama_like, plain_source
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("Starcoder2ForCausalLM",)
GGUF_ARCHITECTURES = ("starcoder2",)

_HF_MLP = {"up": "model.layers.{i}.mlp.c_fc", "down": "model.layers.{i}.mlp.c_proj"}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    return llama_like(
        settings,
        "starcoder2",
        activation="gelu_tanh" if settings.is_gguf else None,
        layer_norm_eps="norm_epsilon",
        gated_mlp=False,
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    if kind == "hf" and name in _HF_MLP:
        return TensorSource(_HF_MLP[name])
    return plain_source(name, config, kind)
