"""Means that follow what changes: the older a case, the less it counts."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 0.98
"""What a case counts for after the next one, wherever something is learned while requests run."""
CASES = 4.0
"""Cases that what is said beforehand weighs as much as."""


@dataclass(slots=True)
class DecayedMean:
    """A mean in which each case weighs `memory` times what the next one does.

    >>> mean = DecayedMean(memory=0.5)
    >>> mean.record(1.0), mean.record(4.0)
    (None, None)
    >>> mean.value, mean.given(0.0, 1.5)
    (3.0, 1.5)
    """

    memory: float
    weight: float = 0.0
    """Weight of all cases together, in units of the last one's."""
    total: float = 0.0

    def record(self, value: float) -> None:
        """Add an observation; earlier ones count for a little less from then on."""
        self.weight = self.weight * self.memory + 1
        self.total = self.total * self.memory + value

    @property
    def value(self) -> float:
        """The mean; 0 before the first case."""
        return self.total / self.weight if self.weight else 0.0

    def given(self, prior: float, weight: float) -> float:
        """Return the mean where `prior` counts as so many cases."""
        return (self.total + weight * prior) / (self.weight + weight)
