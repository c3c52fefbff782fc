"""What becomes of the inputs of a flattened matrix: FlattenQuant, arXiv 2402.17985.

Input j is rounded to a whole number c of steps, and goes to `pieces[j]` places of a wider row, each at most `limit`
large. Of a `spill` split place i holds what is beyond i * limit; of an `even` split all places hold the same, and the
step is that of a piece. The weights of an input are the same for all its places, so they are stored once.
With `limit` 0 each row has a scale of its own, by which its largest input, in steps, becomes 127; then every input has
one place, and steps only say how inputs relate. N rows (outputs), K columns (inputs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError

Split = Literal["even", "spill"]
SPLITS: tuple[Split, ...] = ("even", "spill")
WIDEST = 1 << 16
"""Columns of a flattened row at most: sums of as many products fit 32 bits."""
MIN_STEP = 1e-38
"""The reciprocals of larger steps are finite."""


@dataclass(frozen=True, slots=True)
class FlatRows:
    """How inputs are rounded and split: steps (K,) fp32, pieces (K,) int32, largest code or 0, kind of split."""

    steps: NDArray[np.float32]
    pieces: NDArray[np.int32]
    limit: int
    split: Split

    @classmethod
    def by_row(cls, steps: NDArray[np.float32]) -> FlatRows:
        """Return those of rows with a scale of their own."""
        return cls(steps, np.ones(len(steps), np.int32), 0, "spill")

    @property
    def is_by_row(self) -> bool:
        """Whether each row has a scale of its own."""
        return self.limit == 0

    @property
    def inverse(self) -> NDArray[np.float32]:
        """The factors of inputs (K,) before they are rounded."""
        return np.reciprocal(self.steps)

    @property
    def width(self) -> int:
        """Columns of a flattened row, in whole groups of 32."""
        return num_columns(self.pieces)

    @property
    def factors(self) -> NDArray[np.float32]:
        """What a column (K,) is multiplied by before its weights are rounded: the value of a code in one column."""
        pieces: NDArray[np.float32] = self.pieces.astype(np.float32)
        return self.steps / pieces if self.split == "even" else self.steps

    def check(self, layer: str) -> None:
        """Raise LoadError for numbers of a layer's file that are out of range."""
        is_positive = np.isfinite(self.steps) & (self.steps > MIN_STEP)
        need(bool(is_positive.all()), f"{layer}.input_step", "positive numbers")
        if self.is_by_row:
            return
        need(1 <= self.limit <= 127, f"{layer}.input_limit", "a number from 1 to 127")
        need(
            bool((self.pieces > 0).all()) and int(self.pieces.sum(dtype=np.int64)) <= WIDEST,
            f"{layer}.input_pieces",
            f"numbers from 1 on, {WIDEST} in all at most",
        )


def num_columns(pieces: NDArray[np.int32]) -> int:
    """Return the columns of a flattened row, in whole groups of 32, of inputs with so many each."""
    return -(-int(pieces.sum()) // 32) * 32


def need(is_right: bool, tensor: str, expected: str) -> None:
    """Raise LoadError for a tensor whose numbers are not as expected."""
    if not is_right:
        raise LoadError(f"'{tensor}' must hold {expected}")
