"""What files of networks with decoder layers share: the layout, sizes, the tokens of their head, rotary settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from forerun.core.arrays import Ids
from forerun.core.errors import LoadError
from forerun.core.paths import expanded
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder as network_folder
from forerun.drafters.base.networks.folder import Folder
from forerun.model.arch.base.rope import rope_from_gguf, rope_of
from forerun.model.arch.base.settings import Settings
from forerun.model.config import RopeConfig
from forerun.weights.gguf import GgufCheckpoint

W_co = TypeVar("W_co", covariant=True)
GGUF_TOKENS = "d2t"
"""The tensor of a GGUF file with the tokens of the head, (V',) int64."""
_NUMBERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)  # fmt: skip
_ROTARY = (
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
)


class Layout(Protocol[W_co]):
    """A module that reads one layout of a kind of network: folders, or GGUF files."""

    def check_kind(self, model: str) -> None:
        """Raise LoadError if there is no such network."""
        ...

    def check_target_of(self, model: str, target: Target) -> None:
        """Raise LoadError for one of another target, by its configuration alone."""
        ...

    def read(self, model: str, target: Target) -> W_co:
        """Read one for a target. Raises LoadError naming what is wrong."""
        ...


def is_gguf(model: str) -> bool:
    """Say whether the name is that of a GGUF file, not of a folder."""
    return Path(model).suffix == ".gguf"


def sizes(decoder: Folder) -> dict[str, int]:
    """Read the sizes of decoder layers, by their names in config.json. Raises LoadError."""
    found = {name: decoder.number(name) for name in _NUMBERS}
    usual = max(1, found["hidden_size"] // found["num_attention_heads"])
    return {**found, "head_dim": decoder.number("head_dim", default=usual)}


def check_activation(decoder: Folder) -> None:
    """Raise LoadError for an MLP with another function than silu."""
    if (act := decoder.config.get("hidden_act", "silu")) != "silu":
        raise LoadError(f"{decoder.path}: an MLP with {act!r} is not supported, silu is")


def open_gguf(model: str, architecture: str) -> GgufCheckpoint:
    """Open a GGUF file of an architecture. Raises LoadError for one of another."""
    file = GgufCheckpoint(expanded(model))
    if file.architecture != architecture:
        raise LoadError(
            f"{file.path} is of the architecture {file.architecture!r}, not {architecture}"
        )
    return file


def gguf_tokens(file: GgufCheckpoint, vocab_size: int) -> Ids | None:
    """Read the tokens of the head, None for all. Raises LoadError."""
    if GGUF_TOKENS not in file.names():
        return None
    ids = np.ascontiguousarray(file.tensor(GGUF_TOKENS).data).view(np.int64).reshape(-1)
    folder = Folder(file.path, {}, {GGUF_TOKENS: ids})
    return network_folder.token_ids(folder, GGUF_TOKENS, vocab_size)


def head_tokens(folder: Folder, tensors: dict[str, str], vocab_size: int) -> Ids | None:
    """Read the tokens of the head, None for all; takes their names out of `tensors`.

    `draft_ids` names them; row i of `d2t` stands for token i + d2t[i]; `t2d` is the same as a mask, which is compared.
    Raises LoadError.
    """
    ids, offsets, mask = (
        tensors.pop(name, None) for name in (network_folder.DRAFT_IDS, "d2t", "t2d")
    )
    if ids is not None:
        return network_folder.token_ids(folder, ids, vocab_size)
    if offsets is None:
        return None
    d2t = folder.tensors[offsets]
    if d2t.ndim != 1 or network_folder.is_float(d2t):
        raise LoadError(f"{folder.path}: tensor '{offsets}' must be whole numbers in a row")
    tokens = network_folder.token_ids(
        folder, offsets, vocab_size, d2t.astype(np.int64) + np.arange(len(d2t))
    )
    if mask is not None:
        known = folder.tensors[mask].astype(np.bool_)
        if known.shape != (vocab_size,) or not np.array_equal(np.flatnonzero(known), tokens):
            raise LoadError(
                f"{folder.path}: tensor '{mask}' does not name the tokens of '{offsets}'"
            )
    return tokens


def rope(folder: Folder, head_dim: int) -> RopeConfig:
    """Read the rotary settings, under older names or newer. Raises LoadError."""
    given = folder.config.get("rope_parameters") or folder.config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise LoadError(f"{folder.path}: the rotary settings are {given!r}, but must be an object")
    beside = {key: folder.config.get(key) for key in _ROTARY}
    try:
        found = rope_of(head_dim, beside, given)
    except LoadError as error:
        raise LoadError(f"{folder.path}: {error}") from None
    return _whole(found, head_dim, str(folder.path))


def gguf_rope(file: GgufCheckpoint, head_dim: int) -> RopeConfig:
    """Read the rotary settings of a GGUF file. Raises LoadError."""
    return _whole(rope_from_gguf(Settings(file), head_dim, {}), head_dim, str(file.path))


def _whole(found: RopeConfig, head_dim: int, path: str) -> RopeConfig:
    if found.rotary_dim != head_dim:
        raise LoadError(
            f"{path}: only whole heads are rotated, not {found.rotary_dim} of {head_dim} features"
        )
    return found
