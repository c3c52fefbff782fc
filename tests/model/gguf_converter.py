"""A Hugging Face model's tensors and sizes as GGUF has them, as llama.cpp's converter names and lays them out."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

from forerun.weights.multimodal import language_model_of
from tests.model.gguf_hybrids import laid_out
from tests.model.tiny import MemoryCheckpoint

RENAMED = (
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("altup.modality_router", "altup_router"),
    ("altup.router_norm", "altup_router_norm"),
    ("altup.prediction_coefs", "altup_predict_coef"),
    ("altup.correction_coefs", "altup_correct_coef"),
    ("altup.correct_output_scale", "altup_correct_scale.weight"),
    ("laurel.linear_left", "laurel_l"),
    ("laurel.linear_right", "laurel_r"),
    ("laurel.post_laurel_norm", "laurel_post_norm"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("post_feedforward_layernorm_", "post_ffw_norm_"),
    ("pre_feedforward_layernorm_", "pre_ffw_norm_"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("post_self_attn_layernorm", "post_attention_norm"),
    ("post_mlp_layernorm", "post_ffw_norm"),
    ("input_layernorm", "attn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate.moe_statics.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    *((f"mlp.shared_experts.{n}_proj", f"ffn_{n}_shexp") for n in ("gate", "up", "down")),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.router", "ffn_gate_inp"),
    ("router.proj", "ffn_gate_inp"),
    ("block_sparse_moe.router", "ffn_gate_inp"),
    ("block_sparse_moe.experts", "mlp.experts"),
    ("shared_mlp.output_linear", "ffn_down_shexp"),
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("transformer.h", "blk"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
)
PERMUTED = ("llama", "arcee", "granite", "granitemoe", "mistral3", "smollm3")
"""Whose q and k llama.cpp's converter permutes."""
EPSILONS = ("layer_norm_epsilon", "norm_epsilon", "layer_norm_eps")
AFTER = (
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "olmo2",
    "exaone4",
    "gpt-oss",
    "seed_oss",
    "glm4moe",
)
"""Whose norm behind attention has its own name: the last three read it before the MLP."""


def renamed(name: str, architecture: str) -> str:
    """GGUF's name of a tensor. The norm after attention is of what it adds, or of what the MLP reads."""
    after = "post_attention_norm" if architecture in AFTER else "ffn_norm"
    names = (*RENAMED, ("post_attention_layernorm", after))
    if architecture == "granite":  # dense
        name = name.replace("shared_mlp.output_linear", "ffn_down")
    for old, new in names:
        name = name.replace(old, new)
    return name


def split(name: str, weight: Tensor, architecture: str) -> dict[str, Tensor]:
    """What GGUF has apart: gate and up of experts and of the MLP beside them. gpt-oss interleaves and transposes."""
    if name.endswith("shared_mlp.input_linear.weight"):
        last = "ffn_{}" if architecture == "granite" else "ffn_{}_shexp"
        name = name.replace("shared_mlp.input_linear", last)
    elif ".experts." in name:
        is_bias = name.endswith("_bias")
        stem = (
            name.partition("experts.")[0].removesuffix("mlp.")
            + "ffn_{}_exps"
            + (".bias" if is_bias else ".weight")
        )
        if architecture == "gpt-oss" and not is_bias:
            weight = weight.mT
        if "down_proj" in name:
            return {stem.format("down"): weight.contiguous()}
        if architecture == "gpt-oss":
            return {stem.format("gate"): weight[:, ::2], stem.format("up"): weight[:, 1::2]}
        name = stem
    else:
        return {name: weight}
    gate, up = weight.chunk(2, dim=weight.ndim - 2)
    return {name.format("gate"): gate, name.format("up"): up}


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of every head reordered 0, E/2, 1, E/2 + 1, ...: what llama.cpp's converter does to q and k."""
    heads = weight.unflatten(0, (-1, 2, head_dim // 2))
    return torch.stack((heads[:, 0], heads[:, 1]), dim=2).flatten(0, 2)


def as_gguf(
    model: transformers.PreTrainedModel, architecture: str, extra: dict[str, Any] | None = None
) -> MemoryCheckpoint:
    config = model.config.get_text_config()
    given = config.to_dict()  # attributes that differ between layers cannot be asked for
    head_dim = given.get("head_dim") or config.hidden_size // config.num_attention_heads
    kv_heads = given.get("num_key_value_heads")
    tensors = {}
    _, weights = language_model_of(type(model).__name__, model.config.to_dict(), model.state_dict())
    for name, weight in weights.items():
        if model.config.tie_word_embeddings and name.startswith("lm_head"):
            continue
        if architecture in PERMUTED and ("q_proj" in name or "k_proj" in name):
            weight = interleaved(weight, head_dim)
        if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            weight = weight + 1
        for gguf_name, part in laid_out(name, weight, architecture, config).items():
            tensors |= split(renamed(gguf_name, architecture), part, architecture)
    if architecture == "gemma3n":
        tensors = stacked(tensors)
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": inner,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": kv_heads or config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": next(
            (given[key] for key in EPSILONS if key in given), None
        ),
    }
    metadata |= extra or {}
    prefixed = {f"{architecture}.{k}": v for k, v in metadata.items() if v is not None}
    return MemoryCheckpoint("gguf", architecture, prefixed, tensors)


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gemma 3n's projections of streams, of which a folder has one each, in one tensor."""
    names = {
        "model.altup_projections": "altup_proj",
        "model.altup_unembed_projections": "altup_unembd_proj",
    }
    found = {
        f"{new}.weight": torch.stack([t for name, t in tensors.items() if name.startswith(old)])
        for old, new in names.items()
    }
    return {n: t for n, t in tensors.items() if not n.startswith(tuple(names))} | found
