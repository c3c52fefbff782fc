"""Qwen3-Next and Qwen3.5: the gated delta rule (arXiv 2412.06464) in three layers of four, gated attention in one.

The text halves of Qwen3.5, dense or with experts. In Qwen3.5's GGUFs head h of values reads key head h modulo their
number; elsewhere heads that read one key head lie side by side.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.mapping import expert_source, llama_like, plain_source, read_experts
from forerun.model.arch.base.recurrent import (
    attends,
    either,
    mixed,
    read_state,
    recurrent_of,
    state_source,
)
from forerun.model.arch.base.rope import ropes
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ExpertsConfig, LayerConfig, ModelConfig, RecurrentConfig

HF_ARCHITECTURES = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
GGUF_ARCHITECTURES = ("qwen3next", "qwen35", "qwen35moe")

_NEXT = ("Qwen3NextForCausalLM", "qwen3next")
_HF_KEYS = {
    "kernel": "linear_conv_kernel_dim",
    "state_heads": "linear_num_value_heads",
    "state_key_heads": "linear_num_key_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
}
_GGUF_KEYS = {
    "kernel": "ssm.conv_kernel",
    "state_heads": "ssm.time_step_rank",
    "state_key_heads": "ssm.group_count",
    "key_dim": "ssm.state_size",
    "value_dim": "ssm.inner_size",
}
_HF = "model.layers.{i}.linear_attn."
_NAMES: dict[Kind, dict[str, str]] = {
    "hf": {
        "in_proj": _HF + "in_proj_qkv",
        "z": _HF + "in_proj_z",
        "beta": _HF + "in_proj_b",
        "dt": _HF + "in_proj_a",
        "conv": _HF + "conv1d",
        "decay": _HF + "A_log",
        "dt_bias": _HF + "dt_bias",
        "state_norm": _HF + "norm",
    },
    "gguf": {
        "in_proj": "blk.{i}.attn_qkv",
        "z": "blk.{i}.attn_gate",
        "beta": "blk.{i}.ssm_beta",
        "dt": "blk.{i}.ssm_alpha",
        "conv": "blk.{i}.ssm_conv1d",
        "decay": "blk.{i}.ssm_a",
        "dt_bias": "blk.{i}.ssm_dt.bias",
        "state_norm": "blk.{i}.ssm_norm",
    },
}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    is_gguf, architecture = settings.is_gguf, settings.checkpoint.architecture
    settings.assumed = {
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "head_dim": 256,
        "norm_topk_prob": architecture not in _NEXT,
    }
    state = _state(settings, is_tiled=is_gguf and architecture not in _NEXT)
    experts = _experts(settings)
    rope = ropes(settings, settings.size("head_dim"))[0]
    num_layers = settings.size("num_layers")
    layers = mixed([LayerConfig(rope)] * num_layers, _attends(settings, num_layers), state)
    if experts is not None:
        dense = settings.get("mlp_only_layers", [])
        step = settings.integer("decoder_sparse_step", 1, high=1 << 16)
        if not isinstance(dense, list):
            raise LoadError(
                f"'mlp_only_layers' is {short_repr(dense)}, but must be a list of layers"
            )
        dense_size = None if is_gguf else settings.get("intermediate_size")
        layers = [
            replace(layer, intermediate_size=dense_size)
            if i in dense or (i + 1) % step
            else replace(layer, experts=experts)
            for i, layer in enumerate(layers)
        ]
    return llama_like(settings, "qwen3_next", layers=layers, qk_norm="head", attention_gate=True)


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a weight lies; Qwen3-Next's are fused by key head."""
    state = state_source(name, _NAMES[kind], ("decay", "dt_bias"))
    if state is not None:
        is_log = name == "decay" and kind == "hf"
        return replace(state, is_log=is_log, otherwise=_fused(name, recurrent_of(config), kind))
    if name in ("q", "attn_gate"):
        first, head_dim = plain_source("q", config, kind), config.head_dim
        part = slice(0, head_dim) if name == "q" else slice(head_dim, 2 * head_dim)
        return replace(first, part=part, num_rows=2 * head_dim, num_runs=config.num_heads)
    if name == "o":
        recurrent = TensorSource(_HF + "out_proj" if kind == "hf" else "blk.{i}.ssm_out")
        return either(plain_source("o", config, kind), recurrent)
    if name == "mlp_gate":
        where = "model.layers.{i}.mlp.shared_expert_gate", "blk.{i}.ffn_gate_inp_shexp"
        return TensorSource(where[kind == "gguf"], is_flat=True)
    if name.startswith("expert_"):
        return expert_source(name, config, kind)
    usual = plain_source(name, config, kind)
    if name in ("gate", "up", "down"):
        shared = f"model.layers.{{i}}.mlp.shared_expert.{name}_proj", f"blk.{{i}}.ffn_{name}_shexp"
        return either(TensorSource(shared[kind == "gguf"]), usual)
    if name == "mlp_norm" and kind == "gguf":
        return TensorSource("blk.{i}.post_attention_norm")
    is_less = kind == "hf" and name.endswith("norm")
    return replace(usual, offset=1.0 if is_less else 0.0)


def _fused(name: str, state: RecurrentConfig, kind: Kind) -> TensorSource | None:
    """Return where Qwen3-Next has a projection: of each key head in turn its [q | k | v | z], or [b | a]."""
    runs, key_dim = state.num_key_heads, state.key_dim
    shared = state.num_heads // runs
    values = shared * state.value_dim
    stops = (0, key_dim, 2 * key_dim, 2 * key_dim + values, 2 * key_dim + 2 * values)
    query, key, value, gate = (slice(*ends) for ends in pairwise(stops))
    parts: dict[str, slice | tuple[slice, ...]] = {
        "in_proj": (query, key, value),
        "z": gate,
        "beta": slice(0, shared),
        "dt": slice(shared, 2 * shared),
    }
    if name not in parts:
        return None
    is_wide = name in ("in_proj", "z")
    if kind == "hf":
        where = _HF + ("in_proj_qkvz" if is_wide else "in_proj_ba")
    else:
        where = "blk.{i}.ssm_in" if is_wide else "blk.{i}.ssm_ba"
    return TensorSource(where, parts[name], stops[-1] if is_wide else 2 * shared, runs)


def _state(settings: Settings, *, is_tiled: bool) -> RecurrentConfig:
    keys = _GGUF_KEYS if settings.is_gguf else _HF_KEYS
    settings.keys |= keys
    width = settings.integer(keys["value_dim"], high=1 << 20)  # a GGUF's is of all heads
    if not settings.is_gguf:
        width *= settings.integer(keys["state_heads"], high=1 << 12)
    return read_state(settings, "delta", width, keys, tiled=is_tiled)


def _attends(settings: Settings, num_layers: int) -> list[bool]:
    """Return which layers have attention: as they are listed, or every so many."""
    period = settings.integer("full_attention_interval", 4, high=1 << 12)
    usual = [(i + 1) % period == 0 for i in range(num_layers)]
    listed = settings.get("attention.recurrent_layers") if settings.is_gguf else None
    if listed is not None:
        if not isinstance(listed, list) or not all(isinstance(is_, bool) for is_ in listed):
            listed = []
        if len(listed) - settings.num_heads_inside != num_layers:
            raise LoadError(
                f"'{settings.prefix}attention.recurrent_layers' is "
                f"{short_repr(settings.get('attention.recurrent_layers'))}, "
                f"but must be a boolean for each of {num_layers} layers"
            )
        return [not is_recurrent for is_recurrent in listed[:num_layers]]
    return usual if settings.is_gguf else attends(settings, usual)


def _experts(settings: Settings) -> ExpertsConfig | None:
    experts = read_experts(
        settings, renormalized=settings.is_gguf or settings.flag("norm_topk_prob", True)
    )
    if experts is None:
        return None
    shared = (
        "expert_shared_feed_forward_length"
        if settings.is_gguf
        else "shared_expert_intermediate_size"
    )
    settings.keys["intermediate_size"] = shared
    return replace(experts, gates_mlp=True)
