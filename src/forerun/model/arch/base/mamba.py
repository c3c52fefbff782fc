"""Layers of Mamba-2 (arXiv 2405.21060): their sizes, and their weights under llama.cpp's and transformers' names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.recurrent import read_state, recurrent_of, state_source
from forerun.model.arch.base.settings import Settings, number_in
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig, RecurrentConfig

_GGUF_KEYS = {
    "kernel": "ssm.conv_kernel",
    "state_heads": "ssm.time_step_rank",
    "state_key_heads": "ssm.group_count",
    "key_dim": "ssm.state_size",
    "value_dim": "ssm.inner_size",
}
_NAMES: Mapping[str, tuple[str, str]] = {
    "conv": ("conv1d", "ssm_conv1d"),
    "conv_bias": ("conv1d.bias", "ssm_conv1d.bias"),
    "decay": ("A_log", "ssm_a"),
    "dt_bias": ("dt_bias", "ssm_dt.bias"),
    "skip": ("D", "ssm_d"),
    "state_norm": ("norm", "ssm_norm"),
}
_BARE = ("conv_bias", "decay", "dt_bias", "skip")


def read_mamba(
    settings: Settings,
    keys: Mapping[str, str] = _GGUF_KEYS,
    width: int | None = None,
    *,
    conv_bias: bool = True,
    **others: Any,
) -> RecurrentConfig:
    """Read the sizes under the file's `keys`; `width` is that of all heads' values, by default what it says itself."""
    settings.keys |= keys
    if width is None:
        width = settings.integer(keys["value_dim"], high=1 << 20)
    return read_state(settings, "mamba2", width, keys, conv_bias=conv_bias, **others)


def step_limits(settings: Settings) -> tuple[float, float]:
    """Return between which steps are kept. Raises LoadError."""
    limits = settings.get("time_step_limit") or (0.0, math.inf)
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        raise LoadError(f"'time_step_limit' is {short_repr(limits)}, but must be two numbers")
    # transformers writes {"__float__": "Infinity"}, as JSON has no such number.
    limits = [math.inf if limit == {"__float__": "Infinity"} else limit for limit in limits]
    low, high = (number_in("time_step_limit", limit, 0.0, math.inf) for limit in limits)
    return low, high


def mamba_source(name: str, config: ModelConfig, kind: Kind, where: str) -> TensorSource | None:
    """Return a weight of a Mamba layer, None for others; `where` begins Hugging Face's names.

    Its projections lie in one matrix: [z | x | B | C | dt].
    """
    starts = {"hf": (where, 0), "gguf": ("blk.{i}.", 1)}[kind]
    names = {each: starts[0] + both[starts[1]] for each, both in _NAMES.items()}
    state = state_source(name, names, _BARE)
    if state is not None:
        return replace(state, is_log=name == "decay" and kind == "hf")
    if name not in ("z", "in_proj", "dt"):
        return None
    mamba = recurrent_of(config)
    ends = mamba.value_width, mamba.value_width + mamba.num_channels(config.hidden_size)
    total = ends[1] + mamba.num_heads
    parts = {"z": slice(0, ends[0]), "in_proj": slice(*ends), "dt": slice(ends[1], total)}
    tensor = where + "in_proj" if kind == "hf" else "blk.{i}.ssm_in"
    return TensorSource(tensor, parts[name], total)


def mamba_out(kind: Kind, where: str) -> TensorSource:
    """Return where the output projection of a Mamba layer lies."""
    return TensorSource(where + "out_proj" if kind == "hf" else "blk.{i}.ssm_out")
