"""Means that follow what changes: the older a case, the less it counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MEMORY = 0.98
"""What a case counts for after the next one, wherever something is learned while requests run."""
CASES = 4.0
"""Cases that what is said beforehand weighs as much as."""


class DecayedMeans:
    """Means by index, in which each case weighs `MEMORY` times what the next one of its index does.

    >>> means = DecayedMeans()
    >>> means.record([(0, 1.0), (2, 3.0), (2, 5.0)])
    >>> means.given([0.0, 3.0, 4.0], weight=1.0)
    [0.5, 3.0, 4.006711409395973]
    """

    def __init__(self) -> None:
        self._weights: list[float] = []
        self._totals: list[float] = []

    def __len__(self) -> int:
        return len(self._weights)

    def record(self, cases: Iterable[tuple[int, float]]) -> None:
        """Add observations, each with the index of its mean; there are as many means as the largest index asks for."""
        weights, totals = self._weights, self._totals
        for i, value in cases:
            while len(weights) <= i:
                weights.append(0.0)
                totals.append(0.0)
            weights[i] = weights[i] * MEMORY + 1
            totals[i] = totals[i] * MEMORY + value

    def given(
        self, priors: Sequence[float], weight: float, indices: Iterable[int] | None = None
    ) -> list[float]:
        """Return the means of some indices, by default the first ones, where `priors` count as so many cases each."""
        weights, totals, known = self._weights, self._totals, len(self._weights)
        return [
            (totals[i] + weight * prior) / (weights[i] + weight) if i < known else prior
            for i, prior in zip(range(len(priors)) if indices is None else indices, priors)
        ]
