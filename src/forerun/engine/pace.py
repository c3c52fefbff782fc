"""The machine's present speed: seconds of a unit of cost, the median of the last passes over what they should cost."""

from __future__ import annotations

from collections import deque
from statistics import median

from forerun.core.costs import CostCurve

LAST_PASSES = 5
"""Passes whose median is the present speed; the fastest until there are so many."""
PLAIN_FIRST = 2
"""Plain passes after the first, before anything else is measured: one may have been slow."""


class Pace:
    """Turns seconds into plain passes, whatever else the machine does at the moment."""

    def __init__(self, pass_cost: CostCurve) -> None:
        self._pass_cost = pass_cost
        self._seconds: deque[float] = deque(maxlen=LAST_PASSES)
        self.unit_s = 0.0
        """Seconds of one unit of cost; 0 before the first measurement."""

    @property
    def is_new(self) -> bool:
        """Whether plain passes are still needed to know the unit."""
        return len(self._seconds) < PLAIN_FIRST

    def record(self, num_rows: int, pass_s: float) -> None:
        """Measure a pass of `num_rows` rows that took `pass_s` seconds; its size's cost is learned too."""
        if self.is_new or self._pass_cost.knows(num_rows):  # a new size tells nothing of speed
            self._seconds.append(pass_s / self._pass_cost.predict(num_rows))
        of_last = median if len(self._seconds) == LAST_PASSES else min
        self.unit_s = of_last(self._seconds)
        if self.unit_s:
            self._pass_cost.record(num_rows, pass_s / self.unit_s)
