"""What becomes of the inputs of a flattened matrix: FlattenQuant, arXiv 2402.17985.

Input j is rounded to a whole number c of steps, and goes to `pieces[j]` places of a wider row, each at most `limit`
large: place i holds what is beyond i * limit. The weights of an input are the same for all its places, so they are
stored once. With `limit` 0 each row has a scale of its own, by which its largest input, in steps, becomes 127; then
every input has one place, and steps only say how inputs relate. Such a row may be transformed by Hadamard's matrix
before it is rounded, which spreads what is large in one input over 32 (QuaRot, arXiv 2404.00456).
N rows (outputs), K columns (inputs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError

HADAMARD_SIZE = 32
"""Inputs that are transformed together."""
WIDEST = 1 << 16
"""Columns of a flattened row at most: sums of as many products fit 32 bits."""
FLAT_CODES = {4: (-8, 7), 8: (-127, 127)}
"""The codes of weights by bits. Products of -128 could overflow sums of 16 bits."""
MIN_STEP = 1e-38
"""The reciprocals of larger steps are finite."""


@dataclass(frozen=True, slots=True)
class FlatRows:
    """How inputs are rounded and split: steps (K,) fp32, pieces (K,) int32, largest code or 0."""

    steps: NDArray[np.float32]
    pieces: NDArray[np.int32]
    limit: int
    uses_hadamard: bool = False
    """Whether inputs, in steps, are transformed by Hadamard's matrix before they are rounded."""

    @classmethod
    def by_row(cls, steps: NDArray[np.float32], *, uses_hadamard: bool = False) -> FlatRows:
        """Return those of rows with a scale of their own."""
        return cls(steps, np.ones(len(steps), np.int32), 0, uses_hadamard)

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

    def to_codes(self, weight: Any) -> Any:
        """Return the weights (..., K), an array or a tensor, that inputs in these steps are multiplied by."""
        scaled = weight * self._like(weight)
        return hadamard(scaled) / HADAMARD_SIZE if self.uses_hadamard else scaled

    def from_codes(self, weight: Any) -> Any:
        """Return what `to_codes` was given."""
        return (hadamard(weight) if self.uses_hadamard else weight) / self._like(weight)

    def _like(self, weight: Any) -> Any:
        """Return the steps as what multiplies an array, or a tensor."""
        return self.steps if isinstance(weight, np.ndarray) else weight.new_tensor(self.steps)

    def check(self, layer: str) -> None:
        """Raise LoadError for numbers of a layer's file that are out of range."""
        is_positive = np.isfinite(self.steps) & (self.steps > MIN_STEP)
        need(bool(is_positive.all()), f"{layer}.input_step", "positive numbers")
        if self.is_by_row:
            return
        need(not self.uses_hadamard, f"{layer}.input_hadamard", "0 where there is an 'input_limit'")
        need(1 <= self.limit <= 127, f"{layer}.input_limit", "a number from 1 to 127")
        need(
            bool((self.pieces > 0).all()) and int(self.pieces.sum(dtype=np.int64)) <= WIDEST,
            f"{layer}.input_pieces",
            f"numbers from 1 on, {WIDEST} in all at most",
        )


def hadamard(x: Any) -> Any:
    """Multiply inputs (..., K) of an array or a tensor, 32 at a time, by Hadamard's matrix, whose square is 32.

    Sums and differences at distances 1, 2, 4, 8, 16, in the order of the kernels.
    """
    y = (x * 1).reshape(-1, HADAMARD_SIZE)
    distance = 1
    while distance < HADAMARD_SIZE:
        pairs = y.reshape(len(y), -1, 2, distance)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        pairs[:, :, 0], pairs[:, :, 1] = first + second, first - second
        distance *= 2
    return y.reshape(x.shape)


def num_columns(pieces: NDArray[np.int32]) -> int:
    """Return the columns of a flattened row, in whole groups of 32, of inputs with so many each."""
    return -(-int(pieces.sum()) // 32) * 32


def need(is_right: bool, tensor: str, expected: str) -> None:
    """Raise LoadError for a tensor whose numbers are not as expected."""
    if not is_right:
        raise LoadError(f"'{tensor}' must hold {expected}")
