"""A matrix whose inputs are flattened: FlattenQuant, arXiv 2402.17985. Its codes and what its inputs become.

Input j is rounded to a whole number c of steps, and goes to `pieces[j]` places of a wider row, each at most `limit`
large. Of a `spill` split place i holds what is beyond i * limit; of an `even` split all places hold the same, and the
step is that of a piece. The weights of an input are the same for all its places, so they are stored once.
N rows (outputs), K columns (inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.weights.stored import FORMATS, Rows, StoredTensor, WeightFormat, left_of

Split = Literal["even", "spill"]
SPLITS: tuple[Split, ...] = ("even", "spill")
WIDEST = 1 << 16
"""Places of a row at most: sums of as many products fit 32 bits."""
MIN_STEP = 1e-38
"""The reciprocals of larger steps are finite."""


@dataclass(frozen=True, slots=True)
class FlatRows:
    """What becomes of a layer's inputs: steps (K,) fp32, pieces (K,) int32, the largest code, and the split."""

    steps: NDArray[np.float32]
    pieces: NDArray[np.int32]
    limit: int
    split: Split

    @property
    def inverse(self) -> NDArray[np.float32]:
        """What inputs are multiplied by before they are rounded."""
        return np.reciprocal(self.steps)

    @property
    def width(self) -> int:
        """Places of a row, in whole groups of 32."""
        return num_places(self.pieces)

    @property
    def factors(self) -> NDArray[np.float32]:
        """What a column (K,) is multiplied by before its weights are rounded: the value of a code in one place."""
        places: NDArray[np.float32] = self.pieces.astype(np.float32)
        return self.steps / places if self.split == "even" else self.steps


@dataclass(frozen=True, slots=True)
class FlatParts:
    """Signed codes (N, K) int8, scales (N,) fp32 of columns times `rows.factors`, and the rows."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    rows: FlatRows

    def values(self) -> NDArray[np.float32]:
        """Return the weights (N, K) of unflattened inputs, fp32."""
        return self.codes * self.scales[:, None] / self.rows.factors


@dataclass(frozen=True, slots=True)
class FlatTensor(StoredTensor):
    """A flattened matrix of a file, read when it is asked for."""

    read: Callable[[], FlatParts]
    index: Rows | None = None
    """The rows that are left, None for all."""

    def rows(self, index: Rows) -> Self:
        """Select some rows, with their codes, scales and inputs."""
        left = left_of(self.index, self.shape[0], index)
        return replace(self, shape=(len(left), self.shape[1]), index=left)

    def parts(self) -> FlatParts:
        """Return the codes, scales and inputs. Raises LoadError for numbers that are out of range."""
        parts = self.read()
        _check(self.name, self.format, parts)
        if self.index is None:
            return parts
        return FlatParts(parts.codes[self.index], parts.scales[self.index], parts.rows)

    def dequantize(self) -> Tensor:
        """Return the values, fp32, shape `shape`."""
        return torch.from_numpy(self.parts().values())


def num_places(pieces: NDArray[np.int32]) -> int:
    """Return the places of a row, in whole groups of 32, of inputs with so many each."""
    return -(-int(pieces.sum()) // 32) * 32


def flat_format(bits: int) -> WeightFormat:
    """Return how 4 or 8 bits are stored."""
    return FORMATS["q4_c" if bits == 4 else "q8_c"]


def _check(name: str, format: WeightFormat, parts: FlatParts) -> None:
    rows, most = parts.rows, 2 ** (format.bits - 1) - 1
    named = name.removesuffix(".weight")

    def need(is_right: bool, part: str, wanted: str) -> None:
        if not is_right:
            raise LoadError(f"'{named}.{part}' must hold {wanted}")

    need(bool(np.isfinite(parts.scales).all()), "weight_scale", "finite numbers")
    need(
        bool((np.isfinite(rows.steps) & (rows.steps > MIN_STEP)).all()),
        "input_step",
        "positive numbers",
    )
    need(1 <= rows.limit <= 127, "input_limit", "a number from 1 to 127")
    need(
        bool((rows.pieces > 0).all()) and int(rows.pieces.sum(dtype=np.int64)) <= WIDEST,
        "input_pieces",
        f"numbers from 1 on, {WIDEST} in all at most",
    )
    need(
        bool((np.abs(parts.codes.astype(np.int16)) <= most).all()),
        "weight" if format.bits == 8 else "weight_packed",
        f"codes from -{most} to {most}",
    )
