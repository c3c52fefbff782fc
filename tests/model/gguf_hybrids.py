"""How llama.cpp's converter lays out the recurrent layers of a Hugging Face model."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers import PretrainedConfig

NAMES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "qwen": (
        ("linear_attn.in_proj_qkv.", "attn_qkv."),
        ("linear_attn.in_proj_z", "attn_gate"),
        ("linear_attn.in_proj_b.", "ssm_beta."),
        ("linear_attn.in_proj_a", "ssm_alpha"),
        ("linear_attn.in_proj_ba", "ssm_ba"),
        ("linear_attn.conv1d", "ssm_conv1d"),
        ("linear_attn.A_log", "ssm_a"),
        ("linear_attn.dt_bias", "ssm_dt.bias"),
        ("linear_attn.norm", "ssm_norm"),
        ("linear_attn.out_proj", "ssm_out"),
        ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("post_attention_layernorm", "post_attention_norm"),
    ),
    "granitehybrid": (
        ("mamba.in_proj", "ssm_in"),
        ("mamba.conv1d", "ssm_conv1d"),
        ("mamba.A_log", "ssm_a"),
        ("mamba.dt_bias", "ssm_dt.bias"),
        ("mamba.D", "ssm_d"),
        ("mamba.norm", "ssm_norm"),
        ("mamba.out_proj", "ssm_out"),
    ),
    "lfm2": (
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.out_proj", "shortconv.out_proj"),
        ("conv.conv", "shortconv.conv"),
        ("operator_norm", "attn_norm"),
        ("self_attn.q_layernorm", "attn_q_norm"),
        ("self_attn.k_layernorm", "attn_k_norm"),
        ("self_attn.out_proj", "attn_output"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.w2", "ffn_down"),
        ("model.embedding_norm", "token_embd_norm"),
        ("feed_forward.gate.", "mlp.gate."),
        ("feed_forward.expert_bias", "exp_probs_b.bias"),
        ("feed_forward.experts", "mlp.experts"),
    ),
    "nemotron_h": (
        ("mixer.in_proj", "ssm_in"),
        ("mixer.conv1d", "ssm_conv1d"),
        ("mixer.A_log", "ssm_a"),
        ("mixer.dt_bias", "ssm_dt.bias"),
        ("mixer.D", "ssm_d"),
        ("mixer.norm", "ssm_norm"),
        ("mixer.out_proj", "ssm_out"),
        ("model.embeddings", "token_embd"),
        ("model.norm_f", "output_norm"),
        (".norm.", ".attn_norm."),
        ("mixer.experts.up_proj", "ffn_up_exps.weight"),
        ("mixer.experts.down_proj", "ffn_down_exps.weight"),
        *((f"mixer.{n}_proj", f"self_attn.{n}_proj") for n in "qkvo"),
        ("mixer.", "mlp."),
    ),
    "deepseek2": (
        ("self_attn.q_a_proj", "attn_q_a"),
        ("self_attn.q_b_proj", "attn_q_b"),
        ("self_attn.q_a_layernorm", "attn_q_a_norm"),
        ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ),
}
KINDS = {
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), "qwen"),
    "lfm2moe": "lfm2",
    "nemotron_h_moe": "nemotron_h",
}


def laid_out(
    name: str, weight: Tensor, architecture: str, config: PretrainedConfig
) -> dict[str, Tensor]:
    """A tensor as it is in a GGUF of the architecture, its layers still named as before."""
    kind = KINDS.get(architecture, architecture)
    if kind not in NAMES:
        return {name: weight}
    if parts := _split(name, weight, config):
        return parts
    if name.endswith("A_log"):
        weight = -weight.exp()
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        weight = weight[:, 0]
    if kind == "qwen":
        return _qwen(name, weight, architecture, config)
    if name.endswith(("A_log", "mamba.D", "mixer.D")):
        weight = weight[:, None]
    if name.endswith("mamba.norm.weight"):
        weight = weight.view(config.mamba_n_groups, -1)
    if name.endswith("mixer.norm.weight"):
        weight = weight.view(config.n_groups, -1)
    return {_renamed(name, kind): weight}


def _split(name: str, weight: Tensor, config: PretrainedConfig) -> dict[str, Tensor] | None:
    """What is one tensor in a folder: keys and values of latents, and the MLP of a Granite without experts."""
    if name.endswith("kv_b_proj.weight"):
        both = weight.unflatten(0, (config.num_attention_heads, -1))
        keys, values = both.split([config.qk_nope_head_dim, config.v_head_dim], 1)
        stem = name.removesuffix("self_attn.kv_b_proj.weight")
        parts = {"attn_k_b": keys.mT.contiguous(), "attn_v_b": values.contiguous()}
    elif "shared_mlp" in name and not config.num_local_experts:
        stem, _, last = name.partition("shared_mlp.")
        parts = {"ffn_down": weight}
        if last.startswith("input"):
            parts = dict(zip(("ffn_gate", "ffn_up"), weight.chunk(2), strict=True))
    else:
        return None
    return {f"{stem}{part}.weight": rows for part, rows in parts.items()}


def _renamed(name: str, kind: str) -> str:
    for old, new in NAMES[kind]:
        name = name.replace(old, new)
    return name


def _qwen(
    name: str, weight: Tensor, architecture: str, config: PretrainedConfig
) -> dict[str, Tensor]:
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads
    key, value, each = config.linear_key_head_dim, config.linear_value_head_dim, heads // groups
    if name.endswith("norm.weight") and "linear_attn" not in name:
        weight = weight + 1
    if name.endswith("shared_expert_gate.weight"):
        weight = weight[0]
    if name.endswith("in_proj_qkvz.weight"):
        parts = weight.unflatten(0, (groups, -1)).split([key, key, each * value, each * value], 1)
        query, keys, values, gate = (part.flatten(0, 1) for part in parts)
        stem = name.removesuffix("linear_attn.in_proj_qkvz.weight")
        return {
            f"{stem}attn_qkv.weight": torch.cat((query, keys, values)),
            f"{stem}attn_gate.weight": gate,
        }
    if architecture != "qwen3next" and "linear_attn" in name:
        weight = _tiled(name, weight, 2 * groups * key, lambda w: _reordered(w, groups, each))
    return {_renamed(name, "qwen"): weight}


def _tiled(name: str, weight: Tensor, num_keys: int, reorder: Callable[[Tensor], Tensor]) -> Tensor:
    """Heads of values in another order, wherever they are."""
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return torch.cat((weight[:num_keys], reorder(weight[num_keys:])))
    if name.endswith("out_proj.weight"):
        return reorder(weight.T).T
    return weight if name.endswith("norm.weight") else reorder(weight)


def _reordered(rows: Tensor, groups: int, each: int) -> Tensor:
    """Heads (groups, each) as (each, groups)."""
    heads = rows.unflatten(0, (groups, each, -1))
    return heads.transpose(0, 1).reshape(rows.shape)
