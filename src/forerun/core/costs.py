"""What a step costs by its size: from a table, from measurements while requests run, or both. The older counts less.

A size is the rows of a pass, or the nodes a drafter returned. `v(k)` is the cost of a pass of k rows
over that of one row. Costs learned at run time are relative: the caller that records them divides by the
machine's speed of the moment, so that a slow second does not look like a large pass. Nothing here
reads a clock.

Of a mixture of experts a pass reads each expert that some row chose, once: a size's cost is the mean over what the
rows of such passes chose recently; siblings and repeated text choose fewer than unrelated rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

DECAY = 0.98
"""What a case counts for after the next one, wherever something is learned while requests run (kDecay in C++)."""
PRIOR_WEIGHT = 4.0
"""Cases that what is said beforehand weighs as much as."""
TABLE_SPREAD = 0.2
"""How far apart in cost the measurements would be that the table is worth to the line."""
KNOWN = 2.0
"""Measurements of a size after which its cost is known."""
LEAST_SHARE = 0.25
"""Of a table's cost, where measurements of other sizes say that it is less."""
SIZES = 24
"""Sizes whose costs are computed together."""
OUTLIER = 1.6
"""A first measurement counts as at most so many times what was expected, or as little; later ones are bound closer.

What is outside makes a size count for less, so that a lasting change is learned."""


class CostCurve:
    """A table of points, whose place measurements take as they come.

    Between points costs lie on straight lines, beyond the last the last line goes on. Sizes that were
    measured have decayed means of their own; a line through all measurements, against what the table says of
    their sizes, stands in for the others. Without a table unknown is cheap: the line is against the sizes, and
    flat until two different ones were seen.

    >>> curve = CostCurve({1: 2.0, 2: 3.0, 4: 4.0})
    >>> curve.predict(3), curve.predict(6), curve.v(2)
    (3.5, 5.0, 1.5)
    """

    def __init__(self, points: Mapping[int, float] | None = None) -> None:
        """`points` are costs of an earlier run, by their sizes."""
        self.points = dict(sorted((points or {}).items()))
        self._sizes = [*self.points]
        self._table: list[float] = []
        """What the table says of the sizes 0, 1, ... that were asked for."""
        self._least = LEAST_SHARE if self.points else 0.0  # of the table's cost
        self._means: dict[int, tuple[float, float]] = {}  # size -> weight, mean
        self.known: set[int] = set()
        """Sizes that were measured, and whose last measurements agree."""
        self._costs: list[float] = []
        """Of the sizes 0, 1, ... since the last measurement."""
        # The line: cost against the table's. A table is as good as some measurements on the line y = x.
        self._weight = PRIOR_WEIGHT if self.points else 0.0
        self._size = self._cost = self._between(1) if self.points else 0.0
        self._variance = self._covariance = self._weight * TABLE_SPREAD**2
        self._slope = 1.0 if self.points else 0.0

    def __eq__(self, other: object) -> bool:
        known = {"_table": None, "_costs": None}  # what was asked for makes no difference
        return isinstance(other, CostCurve) and vars(self) | known == vars(other) | known

    def record(self, size: int, cost: float) -> None:
        """Learn one measured cost of a size; later ones count for more."""
        weight, mean = self._means.get(size, (0.0, 0.0))
        limit = 1 + (OUTLIER - 1) / (1 + weight) ** 0.5
        known = mean or self.predict(size)
        is_outlier = known > 0 and not known / limit <= cost <= known * limit
        if is_outlier:
            cost = min(max(cost, known / limit), known * limit)
        mean += (cost - mean) / (weight + 1)
        weight = weight / limit if is_outlier else min(weight + 1, DECAY / (1 - DECAY))
        self._means[size] = weight, mean
        (self.known.add if weight >= KNOWN else self.known.discard)(size)
        # The line: least squares with decaying weights; its slope stays while only one size is seen.
        table = self._table[size] if size < len(self._table) else self._between(size)
        self._weight = self._weight * DECAY + 1
        step, miss = table - self._size, cost - self._cost
        self._size += step / self._weight
        self._cost += miss / self._weight
        self._variance = self._variance * DECAY + step * (table - self._size)
        self._covariance = self._covariance * DECAY + step * (cost - self._cost)
        if self._variance > 0.01:
            self._slope = max(0.0, self._covariance / self._variance)
        self._costs = []

    def v(self, rows: float) -> float:
        """Return the cost of so many rows over that of one."""
        return self.predict(rows) / self.predict(1)

    def predict(self, size: float) -> float:
        """Return the cost of a size; 0 if nothing at all is known."""
        low = int(size)
        costs, share = self.costs(low + 2), size - low
        return costs[low] + share * (costs[low + 1] - costs[low]) if share else costs[low]

    def costs(self, num_sizes: int) -> list[float]:
        """Return the costs of the sizes 0, 1, ..., at least of so many."""
        if len(self._costs) >= num_sizes:
            return self._costs
        num_sizes, table = max(num_sizes, SIZES), self._table
        table += map(self._between, range(len(table), num_sizes))
        cost, slope, size, least = self._cost, self._slope, self._size, self._least
        self._costs = costs = [
            line if (line := cost + slope * (t - size)) > (low := t * least) else low
            for t in table[:num_sizes]
        ]
        for size, (weight, mean) in self._means.items():
            if size < len(costs):
                found = (weight * mean + PRIOR_WEIGHT * costs[size]) / (weight + PRIOR_WEIGHT)
                costs[size] = found
        if min(costs) < 0:
            costs[:] = [max(0.0, each) for each in costs]
        return costs

    def _between(self, size: int) -> float:
        """Return the table's cost; without a table the size itself."""
        sizes, points = self._sizes, self.points
        if not sizes:
            return size
        if size in points:  # to the last bit, so that costs that rise stay so
            return points[size]
        if len(sizes) == 1 or size <= sizes[0]:
            return points[sizes[0]]
        above = min(bisect_left(sizes, size), len(sizes) - 1)
        low, high = sizes[above - 1], sizes[above]
        share = (size - low) / (high - low)
        return points[low] + share * (points[high] - points[low])
