"""What files of networks with decoder layers share: the tokens of their head, and rotary positions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forerun.core.arrays import Ids
from forerun.core.errors import LoadError
from forerun.drafting.networks import folder as network_folder
from forerun.drafting.networks.folder import Folder
from forerun.model.arch.base.rope import rope_from_gguf, rope_of
from forerun.model.arch.base.settings import Settings
from forerun.model.config import RopeConfig
from forerun.weights.gguf import GgufCheckpoint

_ROTARY = (
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
)


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
