"""GPT-BigCode (StarCoder, Granite-20B-code; arXiv 2305.06161): layer norm, learned positions, one kv head."""

from __future__ import annotations

from forerun.model.arch.base.mapping import fused_source, plain_source
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("GPTBigCodeForCausalLM",)
GGUF_ARCHITECTURES = ("starcoder",)

_HF_KEYS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "max_position": "n_positions",
}

_HF_NAMES = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attn_norm": "transformer.h.{i}.ln_1",
    "q": "transformer.h.{i}.attn.c_attn",
    "k": "transformer.h.{i}.attn.c_attn",
    "v": "transformer.h.{i}.attn.c_attn",
    "o": "transformer.h.{i}.attn.c_proj",
    "mlp_norm": "transformer.h.{i}.ln_2",
    "up": "transformer.h.{i}.mlp.c_fc",
    "down": "transformer.h.{i}.mlp.c_proj",
}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    is_gguf = settings.is_gguf
    if not is_gguf:
        settings.keys |= _HF_KEYS
        settings.reject("multi_query", True)
        settings.reject("scale_attn_weights", True)
    norm_eps = "attention.layer_norm_epsilon" if is_gguf else "layer_norm_epsilon"
    return ModelConfig(
        family="gpt_bigcode",
        **settings.sizes(default_kv_heads=1, default_mlp_ratio=4),
        norm="layer",
        norm_eps=settings.number(norm_eps, low=1e-15, high=1),
        activation="gelu_tanh" if is_gguf else settings.activation("activation_function"),
        gated_mlp=False,
        learned_position_offset=0,
        tied_head=settings.is_tied(),
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    if name not in ("q", "k", "v"):
        return TensorSource(_HF_NAMES[name]) if kind == "hf" else plain_source(name, config, kind)
    return fused_source(name, config, _HF_NAMES[name] if kind == "hf" else "blk.{i}.attn_qkv")
