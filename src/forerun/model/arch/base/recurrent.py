"""What families with recurrent layers share: which layers they are, and where heads with a state have their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import TensorSource
from forerun.model.config import WIDTH_UNIT, LayerConfig, ModelConfig, RecurrentConfig

RECURRENT = ("linear_attention", "conv", "mamba")
"""Kinds of layers without attention, as configs spell them."""
_VECTORS = ("conv", "conv_bias", "decay", "dt_bias", "skip", "state_norm")


def recurrent_of(config: ModelConfig) -> RecurrentConfig:
    """Return what stands in the place of attention, which is alike in all layers that have it."""
    return next(layer.recurrent for layer in config.layers if layer.recurrent is not None)


def attends(settings: Settings, default: Sequence[bool]) -> list[bool]:
    """Return which layers have attention. Raises LoadError for kinds of layers that are not known."""
    kinds = settings.get("layer_types")
    if kinds is None:
        return [*default]
    if not isinstance(kinds, list) or len(kinds) != len(default):
        raise LoadError(
            f"'layer_types' is {short_repr(kinds)}, but must be a list of {len(default)} texts"
        )
    for kind in kinds:
        if kind not in (*RECURRENT, "attention", "full_attention"):
            raise LoadError(
                f"layers of type {short_repr(kind)} are not supported: {', '.join(RECURRENT)} are"
            )
    return [kind not in RECURRENT for kind in kinds]


def heads_by_layer(settings: Settings) -> list[bool]:
    """Return which layers of a GGUF have attention: those with kv heads. Reads their number, too."""
    num_layers = settings.size("num_layers")
    heads = settings.get(settings.keys["num_kv_heads"])
    if not isinstance(heads, list):
        return [True] * num_layers
    counts = {n for n in heads if n}
    if len(heads) != num_layers or len(counts) != 1 or not all(isinstance(n, int) for n in heads):
        raise LoadError(
            f"'{settings.prefix}{settings.keys['num_kv_heads']}' is {short_repr(heads)}, but must be "
            f"{num_layers} numbers: 0, or one that is the same for all layers"
        )
    settings.fixed["num_kv_heads"] = counts.pop()
    return [n > 0 for n in heads]


def read_state(
    settings: Settings,
    kind: Literal["delta", "mamba2"],
    width: int,
    keys: Mapping[str, str],
    **others: Any,
) -> RecurrentConfig:
    """Read the sizes of heads with a state, whose values have `width` numbers together. Raises LoadError.

    `keys` are the file's of `kernel`, `state_heads`, `state_key_heads` and `key_dim`; `others` are further fields.
    """
    settings.keys |= keys
    kernel = settings.integer(keys["kernel"], low=2, high=64)
    heads = settings.integer(keys["state_heads"], high=1 << 12)
    key_heads = settings.integer(keys["state_key_heads"], high=1 << 12)
    key_dim = settings.width(keys["key_dim"], high=1 << 12)
    if heads % key_heads:
        raise LoadError(
            f"{heads} heads of values cannot share {key_heads} of keys evenly "
            f"({settings.described('state_heads')}, {settings.described('state_key_heads')})"
        )
    if width % (heads * WIDTH_UNIT):
        raise LoadError(
            f"{heads} heads cannot divide {width} values evenly, into multiples of {WIDTH_UNIT} "
            f"({settings.described('state_heads')}, {settings.described('value_dim')})"
        )
    return RecurrentConfig(kind, kernel, heads, key_heads, key_dim, width // heads, **others)


def mixed(
    layers: Sequence[LayerConfig], attends: Sequence[bool], kind: RecurrentConfig
) -> list[LayerConfig]:
    """Return the layers with `kind` in attention's place where there is none."""
    return [
        layer if has else replace(layer, recurrent=kind, rope=None, sliding_window=None)
        for layer, has in zip(layers, attends, strict=True)
    ]


def state_source(
    name: str, names: Mapping[str, str], without_suffix: Sequence[str] = ()
) -> TensorSource | None:
    """Return a weight of a recurrent layer by the file's `names`, None for another weight.

    `without_suffix` are those without `.weight` behind their names.
    """
    if name not in names:
        return None
    source = TensorSource(names[name], is_flat=name in _VECTORS)
    if source.is_flat:  # a bias of the convolution is a weight of its own
        source = replace(source, suffixes=("" if name in without_suffix else ".weight", ""))
    return source


def either(first: TensorSource, second: TensorSource) -> TensorSource:
    """Return a source that is the second where the file has no tensor of the first."""
    return replace(first, otherwise=second)
