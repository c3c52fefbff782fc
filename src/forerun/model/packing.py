"""From stored weights to the packed ones of a native decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError
from forerun.model.backends.base import BlankWeight
from forerun.model.config import ModelConfig
from forerun.model.shapes import weight_shapes
from forerun.weights.rtn import Scheme, quantize_weight, requantize, rounded_format

if TYPE_CHECKING:
    from forerun.weights.codes import Bytes, Codes, WeightFormat
    from forerun.weights.stored import StoredTensor


_SIDE_BY_SIDE = (
    ("q", "k", "v", "attn_gate"),
    ("gate", "up"),
    ("in_proj", "z", "beta", "dt"),
    ("o",),
    ("down",),
)
"""Matrices that read the same rows, whose columns may have an order of their own."""


class ActOrder:
    """In which order of columns the matrices of each layer read their rows: those that read the same ones, alike."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._known: dict[tuple[str, tuple[str, ...]], NDArray[np.int32] | None] = {}

    def take(self, name: str, format: WeightFormat, codes: Codes | None) -> bool:
        """Note a weight's order, if it has codes; return False if rows cannot be read so, beside those before it."""
        prefix, _, short = name.rpartition(".")
        readers = next((each for each in _SIDE_BY_SIDE if short in each), None)
        order = None if codes is None else codes.order
        if readers is None or format.group is None or not prefix.startswith("layers."):
            return order is None
        layer = self._config.layer(int(prefix.split(".")[1]))
        shares_rows = short in ("gate", "up") and layer.experts is not None
        if order is not None and (shares_rows or (short == "o" and layer.recurrent is not None)):
            return False
        known = self._known.setdefault((prefix, readers), order)
        return order is None or (known is not None and np.array_equal(known, order))


class Packs(Protocol):
    """What takes weights and packs them for the kernels; implemented by `backends.native.NativeDecoder`."""

    config: ModelConfig

    def add(self, name: str, stored: StoredTensor, bias: StoredTensor | None) -> None:
        """Pack one weight. Raises LoadError for a shape or a format that has no kernel."""
        ...

    def add_blank(
        self,
        name: str,
        form: str | None,
        shape: Sequence[int],
        has_bias: bool,
        is_apart: bool = False,
    ) -> list[Bytes]:
        """Make room for a weight; return the bytes to fill, its bias's last. Raises ValueError."""
        ...


def fill(
    decoder: Packs,
    weights: Iterable[tuple[str, StoredTensor]],
    names: Iterable[str] | None = None,
    *,
    quant: Scheme = "none",
    head_bits: int | None = None,
) -> None:
    """Give a decoder its weights, as `load` does: those of `names`, by default all of its configuration's.

    Raises LoadError if one is missing or has no kernel.
    """
    missing = dict.fromkeys(weight_shapes(decoder.config) if names is None else names)
    packable = _with_biases(weights)
    if head_bits is not None:
        packable = _with_rounded_head(packable, head_bits, "head" not in missing)
    for name, stored, bias in packable:
        decoder.add(name, quantize_weight(name, stored, quant), bias)
        stored.release()
        missing.pop(name, None)
    if missing:
        raise LoadError(f"weights are missing: {', '.join(missing)}")


def fill_blank(decoder: Packs, weights: Iterable[BlankWeight], head_bits: int | None) -> None:
    """Give a decoder room for its weights, as `blank` does."""
    for name, shape, form, has_bias in weights:
        kind = form.name if len(shape) > 1 else None
        if head_bits is not None and name == ("embed" if decoder.config.tied_head else "head"):
            decoder.add_blank("head", rounded_format(head_bits).name, shape, has_bias, True)
            if name == "head":
                continue
        decoder.add_blank(name, kind, shape, has_bias, True)


def _with_biases(
    items: Iterable[tuple[str, StoredTensor]],
) -> Iterable[tuple[str, StoredTensor, StoredTensor | None]]:
    pending: tuple[str, StoredTensor] | None = None
    for name, stored in items:
        if pending and name == f"{pending[0]}.bias":
            yield *pending, stored
            pending = None
            continue
        if pending:
            yield *pending, None
        pending = name, stored
    if pending:
        yield *pending, None


def _with_rounded_head(
    items: Iterable[tuple[str, StoredTensor, StoredTensor | None]], bits: int, is_tied: bool
) -> Iterable[tuple[str, StoredTensor, StoredTensor | None]]:
    source = "embed" if is_tied else "head"
    for name, stored, bias in items:
        if name == source:
            yield "head", requantize(stored, bits), bias
            stored.release()
        if name != source or is_tied:
            yield name, stored, bias
