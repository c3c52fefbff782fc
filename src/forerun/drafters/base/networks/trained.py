"""Networks as they were trained: their tensors by the names of the kernels, and what their files have in common.

V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import ConfigError, LoadError, short_repr
from forerun.drafters.base.networks.folder import DRAFT_IDS, Array, integers, is_float
from forerun.model.arch.base.rope import given_scaling, rope_from_gguf, rope_of
from forerun.model.arch.base.settings import LARGEST, Settings
from forerun.model.config import ModelConfig, RopeConfig
from forerun.weights.base import Checkpoint
from forerun.weights.stored import StoredTensor, stored_floats

UNTRAINED = "untrained"
"""The name of a network of random weights: for checks, and to measure what a draft costs."""
UNTRAINED_TOKENS = 4096
"""Of its head, at most."""
WIDEST = LARGEST["hidden_size"]
"""A width at most."""
Shape = tuple[int, ...]
_BY_TOKENS = ("head.", "markov.out")
"""How the tensors begin that have a row for each token of the head."""
_ROTARY = (
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
)


class NetworkConfig(Protocol):
    """What the configuration of a network tells of its tensors."""

    def shapes(self) -> Mapping[str, Shape]:
        """List the tensors by the kernels' names; `.bias` is that of a norm."""
        ...

    def file_name(self, name: str) -> str:
        """Return what a folder calls a tensor."""
        ...


Config = TypeVar("Config", bound=NetworkConfig)


@dataclass(frozen=True)
class TrainedNetwork(Generic[Config]):
    """A network as it was read: its configuration, and its tensors by the kernels' names."""

    config: Config
    tensors: Mapping[str, StoredTensor]
    tokens: Ids | None = None
    """The tokens of the head (V',), ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)
    """By depth, the last for all below: logits are divided by it before they become probabilities."""

    def cut(self, listed: Ids | None) -> Self:
        """Keep the head's rows of the tokens on a list, ascending (VocabTrim, arXiv 2506.22694); None: of all.

        A head that is the target's is taken for those tokens alone. Raises ConfigError if none is left.
        """
        if listed is None:
            return self
        known = listed if self.tokens is None else self.tokens
        kept = np.intersect1d(known, listed)
        if not len(kept):
            raise ConfigError("the head knows none of the tokens that draft_vocab keeps: raise it")
        rows = kept if self.tokens is None else np.searchsorted(known, kept)
        tensors = {
            name: stored.rows(rows) if name.startswith(_BY_TOKENS) else stored
            for name, stored in self.tensors.items()
        }
        config: Any = self.config
        if hasattr(config, "draft_vocab_size"):
            config = replace(config, draft_vocab_size=len(kept))
        return replace(self, config=config, tensors=tensors, tokens=kept)

    def by_file_names(self) -> dict[str, Floats]:
        """Return the tensors, fp32, by their names in folders."""
        return {
            self.config.file_name(name): each.dequantize() for name, each in self.tensors.items()
        }


def untrained_tokens(vocab_size: int) -> Ids | None:
    """List the tokens of an untrained network's head (V',); None for all."""
    return None if vocab_size <= UNTRAINED_TOKENS else np.arange(UNTRAINED_TOKENS)


def untrained_tensors(shapes: Mapping[str, Shape]) -> dict[str, StoredTensor]:
    """Draw random matrices that keep the size of what they read, norms of ones and biases of zeros."""
    source = np.random.default_rng(0)
    tensors = dict[str, StoredTensor]()
    for name, shape in shapes.items():
        if len(shape) > 1:
            values = source.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        else:
            values = np.full(shape, "bias" not in name, np.float32)
        tensors[name] = stored_floats(name, values)
    return tensors


def take(
    file: Checkpoint,
    names: Mapping[str, str],
    shapes: Mapping[str, Shape],
    file_name: Callable[[str], str],
    is_ignored: Callable[[str], bool] = lambda name: False,
) -> dict[str, StoredTensor]:
    """Return the tensors of `shapes`; `names` are those in the file by those without a prefix.

    Raises LoadError for one that is missing or misshapen, and for one that is not of the network.
    """
    tensors = dict[str, StoredTensor]()
    for name_here, shape in shapes.items():
        if (stored_name := file_name(name_here)) not in names:
            raise LoadError(f"tensor '{stored_name}' is missing")
        tensors[name_here] = stored = file.tensor(names[stored_name])
        if stored.shape != shape:
            raise LoadError(f"tensor '{stored.name}' is {[*stored.shape]}, expected {[*shape]}")
    for name in sorted(names.keys() - {*map(file_name, shapes)}):
        if not is_ignored(name):
            raise LoadError(f"tensor '{names[name]}' is none of such a network")
    return tensors


def head_tokens(file: Checkpoint, names: dict[str, str], vocab_size: int) -> Ids | None:
    """Read the tokens of the head, None for all; takes what names them out of `names`.

    `draft_ids` names them, and `d2t` of a GGUF file; row i of a folder's `d2t` stands for token i + d2t[i]; `t2d` is
    the same as a mask, which is compared. Raises LoadError.
    """
    ids, offsets, mask = (names.pop(name, None) for name in (DRAFT_IDS, "d2t", "t2d"))
    name = offsets if ids is None else ids
    if name is None:
        return None
    values = integers(file, name)
    if ids is None and file.kind == "hf" and values.ndim == 1:
        values = values.astype(np.int64) + np.arange(len(values))
    tokens = _ascending(values, name, vocab_size)
    if mask is not None:
        known = integers(file, mask).astype(np.bool_)
        if known.shape != (vocab_size,) or not np.array_equal(np.flatnonzero(known), tokens):
            raise LoadError(f"tensor '{mask}' does not name the tokens of '{name}'")
    return tokens


def _ascending(ids: Array, name: str, vocab_size: int) -> Ids:
    is_right = ids.ndim == 1 and len(ids) > 0 and not is_float(ids)
    if not is_right or ids[0] < 0 or ids[-1] >= vocab_size or bool((np.diff(ids) <= 0).any()):
        raise LoadError(f"tensor '{name}' must be ascending token ids below {vocab_size}")
    return ids.astype(np.int64)


def temperatures(file: Checkpoint) -> tuple[float, ...]:
    """Read `temperature`, by depth. Raises LoadError."""
    values = file.config.get("temperature", 1.0)
    values = values if isinstance(values, list) else [values]
    if not values or not all(isinstance(v, int | float) and 0 < v < 1000 for v in values):
        raise LoadError(f"'temperature' must be numbers above 0, got {short_repr(values)}")
    return tuple(map(float, values))


def key_of(settings: Settings, *keys: str) -> str:
    """Return the first of some keys that the file has, the first of all if it has none."""
    return next((key for key in keys if settings.get(key) is not None), keys[0])


def check_sizes(compared: Iterable[tuple[int, int, str]]) -> None:
    """Raise LoadError for the first size that is another model's: (the network's, the target's, of what)."""
    for trained, own, what in compared:
        if trained != own:
            raise LoadError(
                f"it was trained for another model: it reads {what} {trained}, this model has {own}"
            )


def flattened(file: Checkpoint, *sections: str) -> Settings:
    """Return the settings with those of some sections beside them, which count more; `file` has them from then on."""
    inner = [file.config.get(section) for section in sections]
    parts = [file.config, *(part for part in inner if isinstance(part, Mapping))]
    file.config = {k: v for part in parts for k, v in part.items() if v is not None}
    return Settings(file)


def decoder_sizes(settings: Settings, vocab_size: int) -> dict[str, int]:
    """Read the sizes of decoder layers, under Hugging Face's names; `vocab_size` is for a GGUF without one.

    Raises LoadError.
    """
    settings.reject("hidden_act", "silu")
    width, heads = settings.size("hidden_size"), settings.size("num_heads")
    if settings.is_gguf:
        settings.fixed["vocab_size"] = settings.integer(
            "vocab_size", vocab_size, high=LARGEST["vocab_size"]
        )
    return {
        "vocab_size": settings.size("vocab_size"),
        "hidden_size": width,
        "intermediate_size": settings.size("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": settings.size("num_kv_heads", heads),
        "head_dim": settings.size("head_dim", max(1, width // heads)),
    }


def sizes_of(shape: ModelConfig) -> dict[str, Any]:
    """Return the same sizes of a target."""
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
    }


def norm_eps(settings: Settings, usual: float) -> float:
    """Read what RMS norms add. Raises LoadError."""
    key = "attention.layer_norm_rms_epsilon" if settings.is_gguf else "rms_norm_eps"
    return settings.number(key, usual, low=1e-12)


def rope(settings: Settings, head_dim: int) -> RopeConfig:
    """Read the rotary settings of whole heads. Raises LoadError."""
    if settings.is_gguf:
        found = rope_from_gguf(settings, head_dim, {})
    else:
        beside = {key: settings.get(key) for key in _ROTARY}
        found = rope_of(head_dim, beside, given_scaling(settings))
    if found.rotary_dim != head_dim:
        raise LoadError(
            f"only whole heads are rotated, not {found.rotary_dim} of {head_dim} features"
        )
    return found


def neighbours_apart(num_rows: int, head_dim: int) -> Ids:
    """Return the rows of queries or keys so that features that rotate together are half a head apart."""
    order = np.arange(head_dim).reshape(-1, 2).T.reshape(-1)
    return (np.arange(0, num_rows, head_dim)[:, None] + order).reshape(-1)


def layer_ids(given: object, shift: int) -> list[int]:
    """Return the layers of a list whose outputs are read, counted from 0; none if it is not a list of whole numbers."""
    if not isinstance(given, list) or not all(type(i) is int for i in given):
        return []
    return [i - shift for i in given]
