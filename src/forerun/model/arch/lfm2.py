"""Liquid AI's LFM2, dense or with experts: short convolutions between two gates in most layers, else attention."""

from __future__ import annotations

from forerun.model.arch.base.mapping import expert_source, llama_like, read_experts
from forerun.model.arch.base.recurrent import attends, either, heads_by_layer, mixed, state_source
from forerun.model.arch.base.rope import ropes
from forerun.model.arch.base.routing import after_dense, routed, routed_source, with_experts
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import LayerConfig, ModelConfig, RecurrentConfig

HF_ARCHITECTURES = ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
GGUF_ARCHITECTURES = ("lfm2", "lfm2moe")

_LAYER = "model.layers.{i}."
_HF_NAMES = {
    "norm": "model.embedding_norm",
    "attn_norm": _LAYER + "operator_norm",
    "mlp_norm": _LAYER + "ffn_norm",
    "q_norm": _LAYER + "self_attn.q_layernorm",
    "k_norm": _LAYER + "self_attn.k_layernorm",
    "gate": _LAYER + "feed_forward.w1",
    "up": _LAYER + "feed_forward.w3",
    "down": _LAYER + "feed_forward.w2",
    "router": _LAYER + "feed_forward.gate",
}
_STATE_NAMES: dict[Kind, dict[str, str]] = {
    "hf": {
        "in_proj": _LAYER + "conv.in_proj",
        "conv": _LAYER + "conv.conv",
        "conv_bias": _LAYER + "conv.conv.bias",
    },
    "gguf": {
        "in_proj": "blk.{i}.shortconv.in_proj",
        "conv": "blk.{i}.shortconv.conv",
        "conv_bias": "blk.{i}.shortconv.conv.bias",
    },
}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    is_gguf, num_layers = settings.is_gguf, settings.size("num_layers")
    settings.assumed = {
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "rms_norm_eps": settings.get("norm_eps", 1e-5),
        "hidden_act": "silu",
        "num_dense_layers": 2,
    }
    is_moe = settings.checkpoint.architecture in ("Lfm2MoeForCausalLM", "lfm2moe")
    if not is_gguf and not is_moe:
        settings.fixed["intermediate_size"] = _mlp_width(settings)
    listed = settings.get("full_attn_idxs") or range(num_layers)
    usual = [i in listed for i in range(num_layers)]
    has_attention = heads_by_layer(settings) if is_gguf else attends(settings, usual)
    settings.keys["kernel"] = "shortconv.l_cache" if is_gguf else "conv_L_cache"
    kernel = settings.integer(settings.keys["kernel"], 3, low=2, high=64)
    has_bias = "blk.0.shortconv.conv.bias" in settings.checkpoint.names()
    if not is_gguf:
        has_bias = settings.flag("conv_bias", False)
    kind = RecurrentConfig("conv", kernel, conv_bias=has_bias)
    sizes = settings.sizes()
    layers = [LayerConfig(ropes(settings, sizes["head_dim"])[0])] * num_layers
    experts = read_experts(settings, is_scaled=True) if is_moe else None
    if experts is not None:
        always = True if is_gguf else settings.flag("norm_topk_prob", True)
        experts = routed(
            settings, experts, bias="expert_bias", sum_offset=1e-6, renormalized=always
        )
        layers = with_experts(layers, experts, after_dense(settings, "num_dense_layers"))
    return llama_like(settings, "lfm2", layers=mixed(layers, has_attention, kind), qk_norm="head")


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a weight lies."""
    state = state_source(name, _STATE_NAMES[kind], ("conv_bias",))
    if state is not None:
        return state
    if name == "o":
        attended = _LAYER + "self_attn.out_proj" if kind == "hf" else "blk.{i}.attn_output"
        convolved = _LAYER + "conv.out_proj" if kind == "hf" else "blk.{i}.shortconv.out_proj"
        return either(TensorSource(attended), TensorSource(convolved))
    if kind == "gguf" and name == "norm":
        return TensorSource("token_embd_norm")
    if kind == "hf" and name in _HF_NAMES:
        return TensorSource(_HF_NAMES[name])
    if name.startswith("expert_"):
        stored, parts = _LAYER + "feed_forward.experts.", {"gate": "w1", "up": "w3", "down": "w2"}
        return expert_source(name, config, kind, stored + "{e}.", stored, parts)
    if name == "choice_bias" and kind == "hf":
        return TensorSource(_LAYER + "feed_forward.expert_bias", suffixes=("", ".bias"))
    return routed_source(name, config, kind)


def _mlp_width(settings: Settings) -> int:
    """Return the MLP's width, which configs say before it is cut to two thirds and rounded up."""
    key = "block_ff_dim" if settings.get("block_ff_dim") is not None else "intermediate_size"
    width = settings.integer(key, high=1 << 20)
    if not settings.flag("block_auto_adjust_ff_dim", True):
        return width
    scaled = settings.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3)
    unit = settings.integer("block_multiple_of", 256, high=1 << 16)
    return unit * -(-int(scaled) // unit)
