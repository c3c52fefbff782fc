"""What a step costs, learned while it runs: a cost for every size, from noisy and drifting measurements.

A size is the rows of a pass, or the nodes a drafter returned. Costs are relative: whoever records
them divides by the machine's speed of the moment, so that a slow second does not look like a large
pass. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping

MEMORY = 32.0
"""Measurements of one size that count; older ones fade."""
LINE_DECAY = 0.98
LINE_WEIGHT = 4.0
"""How many measurements of its own a size needs to weigh as much as the line through all sizes."""
SEED_DECAY = 0.95
"""What the costs of an earlier run count for after one more measurement."""
OUTLIER = 2.0
"""A measurement counts as at most so many times what was known: the scheduler's hiccups."""


class CostCurve:
    """Decayed means of the sizes that were seen, and a line through all of them for the others.

    Unknown is cheap: without two different sizes the line is flat, so what was never tried is tried.
    """

    def __init__(self) -> None:
        self._means: dict[int, tuple[float, float]] = {}  # size -> weight, mean
        self._seeds: dict[int, float] = {}
        self._trust = 0.0  # in the seeds, against the line
        self._weight = self._size = self._cost = 0.0
        self._slope = 0.0
        self._variance = self._covariance = 0.0

    def record(self, size: int, cost: float) -> None:
        """Learn one measurement."""
        weight, mean = self._means.get(size, (0.0, 0.0))
        if weight >= 2:
            cost = min(cost, OUTLIER * mean)
        weight = min(weight + 1, MEMORY)
        self._means[size] = (weight, mean + (cost - mean) / weight)
        self._fit(size, cost)
        self._trust *= SEED_DECAY

    def seed(self, costs: Mapping[int, float]) -> None:
        """Begin with costs of an earlier run, which stand in the line's place until real ones come."""
        self._seeds, self._trust = dict(costs), 1.0

    def knows(self, size: int) -> bool:
        """True if that size was measured."""
        return size in self._means

    def predict(self, size: float) -> float:
        """The cost of a size, between whole sizes in proportion; 0 before the first measurement."""
        low = int(size)
        cost, share = self._at(low), size - low
        return cost + share * (self._at(low + 1) - cost) if share else cost

    def _at(self, size: int) -> float:
        line = self._cost + self._slope * (size - self._size)
        line += self._trust * (self._seeds.get(size, line) - line)
        weight, mean = self._means.get(size, (0.0, 0.0))
        return max(0.0, (weight * mean + LINE_WEIGHT * line) / (weight + LINE_WEIGHT))

    def _fit(self, size: int, cost: float) -> None:
        """Least squares with decaying weights; the slope stays while only one size is seen."""
        self._weight = self._weight * LINE_DECAY + 1
        step, miss = size - self._size, cost - self._cost
        self._size += step / self._weight
        self._cost += miss / self._weight
        self._variance = self._variance * LINE_DECAY + step * (size - self._size)
        self._covariance = self._covariance * LINE_DECAY + step * (cost - self._cost)
        if self._variance > 0.01:
            self._slope = max(0.0, self._covariance / self._variance)
