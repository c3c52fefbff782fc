"""How numbers of a matrix are stored: formats by name, and the record of integer codes that all of them unpack to.

N rows (outputs), K columns (inputs) of a matrix; G groups of g columns share a scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError
from forerun.core.native import native_problem
from forerun.weights.flat import FLAT_CODES, FlatRows, need

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Rows = slice | NDArray[np.int64]
"""Which rows of a matrix, or elements of a vector."""


def _e4m3() -> Floats:
    """Return the numbers of all bytes: a sign, 4 bits of exponent (bias 7), 3 of mantissa (arXiv 2209.05433)."""
    bits = np.arange(128, dtype=np.float32)
    mantissa, exponent = bits % 8, bits // 8
    sizes = np.where(
        exponent > 0, np.exp2(exponent - 7) * (1 + mantissa / 8), np.exp2(np.float32(-9)) * mantissa
    )
    sizes[127] = np.nan
    values: Floats = np.concatenate((sizes, -sizes)).astype(np.float32)
    return values


E4M3 = _e4m3()
"""What each byte stands for."""
LARGEST_SCALE = 65504.0
"""Scales are held as fp16."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How numbers are stored. A row is a sequence of blocks of `block` weights in `block_nbytes` bytes.

    With a group g, weight w of a row is `scale[w // g] * code[w] + min[w // g]`, or with zero points
    `scale[w // g] * (code[w] - zero[w // g])`; without a group it is a floating-point number, or a code with a scale
    a row (`q4_c`, `q8_c`, of flattened inputs).
    """

    name: str
    """In lower case, as GGUF spells it; GGUF has no zero points, no minima of 8 bits, no scales a row and no e4m3:
    `q*_z`, `q8_m`, `q*_c` and `f8` are our names."""
    bits: int
    """Of one code, or of one floating-point number."""
    group: int | None = None
    has_min: bool = False
    block: int = 1
    block_nbytes: int = 0
    has_zero: bool = False
    values: tuple[int, ...] | None = None
    """What the codes stand for, if not for themselves."""
    bits_per_weight: float = 0.0
    """Bits a weight takes in memory, its part of the scales included."""

    @property
    def is_flat(self) -> bool:
        """Whether a row is codes with one scale, of flattened inputs."""
        return self.group is None and self.block > 1


FLOAT8_GROUP = 128
"""Columns whose e4m3 numbers share a scale."""


class _Formats(Mapping[str, WeightFormat]):
    """The table of the kernels (csrc/kernels/blocks.h). Looking into it raises LoadError if they are not there."""

    @cached_property
    def _table(self) -> dict[str, WeightFormat]:
        if problem := native_problem():
            raise LoadError(f"weights are read by the native kernels, and they are {problem}")
        from forerun import _native

        return {each["name"]: WeightFormat(**each) for each in _native.weight_formats()}

    def __getitem__(self, name: str) -> WeightFormat:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


FORMATS: Mapping[str, WeightFormat] = _Formats()
"""The formats that can be read, by name; GGUF files have all but `q*_z`, `q8_m`, `q*_c` and `f8`."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Integer codes of a matrix: weight = scale * (code - zero) + min, a scale for each group of columns."""

    codes: NDArray[np.int8] | Bytes
    """(N, K)."""
    scales: Floats
    """(N, G); one group is a scale a row."""
    mins: Floats | None = None
    """(N, G)."""
    zeros: Floats | None = None
    """Zero points (N, G), whole numbers."""
    groups: NDArray[np.int32] | None = None
    """The group (K,) of each column; None if those of a group lie together, in order."""
    is_float8: bool = False
    """Codes are the bytes of e4m3 numbers, and the last group of columns may be smaller."""
    flat: FlatRows | None = None
    """What becomes of the inputs of a flattened matrix, whose weights are `flat.to_codes` of the matrix."""

    def rows(self, index: Rows) -> Codes:
        """Return the codes of some rows (N,), all groups of each."""
        return replace(
            self,
            codes=self.codes[index],
            scales=self.scales[index],
            mins=None if self.mins is None else self.mins[index],
            zeros=None if self.zeros is None else self.zeros[index],
        )

    @property
    def order(self) -> NDArray[np.int32] | None:
        """The columns (K,) of the groups one after the other; None if they lie so."""
        if self.groups is None:
            return None
        return np.argsort(self.groups, kind="stable").astype(np.int32)

    def columns(self, name: str, start: int, stop: int) -> Codes:
        """Return columns `start` to `stop`. Raises LoadError where they cut a group, or groups have no order."""
        count, size = self.scales.shape[1], self.codes.shape[1]
        group = FLOAT8_GROUP if self.is_float8 else size // count
        if self.flat is not None or self.groups is not None:
            raise LoadError(
                f"'{name}' is flattened or has columns in an order of its own: it cannot be cut"
            )
        if count > 1 and (start % group or (stop % group and stop != size)):
            raise LoadError(f"columns {start} to {stop} of '{name}' cut a group of {group}")
        groups = slice(start // group, -(-stop // group)) if count > 1 else slice(None)
        return replace(
            self,
            codes=self.codes[:, start:stop].copy(),
            scales=np.ascontiguousarray(self.scales[:, groups]),
            mins=None if self.mins is None else np.ascontiguousarray(self.mins[:, groups]),
            zeros=None if self.zeros is None else np.ascontiguousarray(self.zeros[:, groups]),
        )

    def check(self, name: str, bits: int) -> None:
        """Raise LoadError for numbers of a weight's file that are out of range."""
        if self.is_float8:
            need(bool(np.isfinite(self.scales).all()), f"{name}_scale", "finite numbers")
            need(
                not (self.codes.view(np.uint8) & 127 == 127).any(),
                name,
                "numbers, but some are NaN",
            )
            return
        if self.flat is None:
            for kind, numbers in {"scales": self.scales, "minima": self.mins}.items():
                if numbers is not None and not (np.abs(numbers) <= LARGEST_SCALE).all():
                    raise LoadError(
                        f"the {kind} of '{name}' are not all numbers that fp16 can hold"
                    )
            return
        layer, part = name.removesuffix(".weight"), "weight" if bits == 8 else "weight_packed"
        low, high = FLAT_CODES[bits]
        is_within = low <= self.codes.min(initial=0) and self.codes.max(initial=0) <= high
        need(is_within, f"{layer}.{part}", f"codes from {low} to {high}")
        need(bool(np.isfinite(self.scales).all()), f"{layer}.weight_scale", "finite numbers")
        self.flat.check(layer)

    def values(self) -> Floats:
        """Return the weights (N, K), fp32, rounded after each operation."""
        if self.is_float8:
            wide = np.repeat(self.scales, FLOAT8_GROUP, axis=1)[:, : self.codes.shape[1]]
            return E4M3[self.codes.view(np.uint8)] * wide
        values = self.codes.astype(np.float32, order="C")
        if self.groups is None:
            values = values.reshape(*self.scales.shape, -1)
        if self.zeros is not None:
            values -= self._of_columns(self.zeros)
        values *= self._of_columns(self.scales)
        if self.mins is not None:
            values += self._of_columns(self.mins)
        values = values.reshape(self.codes.shape)
        return values if self.flat is None else self.flat.from_codes(values)

    def _of_columns(self, part: Floats) -> Floats:
        """Return numbers of groups (N, G) as those of columns: (N, G, 1), or (N, K) if columns have an order."""
        return part[..., None] if self.groups is None else part[:, self.groups]
