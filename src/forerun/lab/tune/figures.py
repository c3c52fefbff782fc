"""What autotune measures: the time of passes, and what drafting with one setting brings and costs.

Counts of tokens are exact and the same on every machine; times are medians of this one. Everything
is compared in plain passes: what one row of one sequence takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from forerun.core.costs import CostCurve


@dataclass(frozen=True, slots=True)
class PassTime:
    """Median milliseconds of a pass of `rows` rows in all, of `num_seqs` sequences of `context` tokens each."""

    context: int
    num_seqs: int
    rows: int
    ms: float


@dataclass(frozen=True)
class PassTimes:
    """Measured times of passes. Costs are in plain passes: one row of one sequence at the same context."""

    times: tuple[PassTime, ...]

    @cached_property
    def plain_ms(self) -> float:
        """Milliseconds of the plain pass, over all contexts."""
        plain = self._plain()
        return sum(plain.values()) / len(plain)

    def cost(self, rows: float) -> float:
        """Return the cost of a pass of one sequence and so many rows, from the nearest that were measured."""
        return self._alone.predict(rows)

    def costs(self, max_seqs: int) -> CostCurve:
        """Return the costs by rows, for batches up to `max_seqs`: the mean over contexts and batches.

        More rows never cost less, whatever the noise says.
        """
        plain, by_rows = self._plain(), dict[int, list[float]]()
        for time in self.times:
            if time.num_seqs <= max_seqs:
                by_rows.setdefault(time.rows, []).append(time.ms / plain[time.context])
        means = [sum(by_rows[rows]) / len(by_rows[rows]) for rows in sorted(by_rows)]
        return CostCurve(dict(zip(sorted(by_rows), accumulate(means, max), strict=True)))

    @cached_property
    def _alone(self) -> CostCurve:
        return self.costs(1)

    def _plain(self) -> dict[int, float]:
        return {t.context: t.ms for t in self.times if (t.num_seqs, t.rows) == (1, 1)}


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """Results of drafting in full with one setting on some prompts, one sequence at a time."""

    drafter: str
    """The setting, as `-d` takes it."""
    passes: int
    emitted: int
    drafted: int
    accepted: int
    rows: Mapping[int, int]
    """Passes by their number of rows."""
    draft_cost: Mapping[int, float]
    """Median cost of a proposal by the nodes it returned, in plain passes."""
    draft_total: float
    """Cost of all proposals together, in plain passes."""
    nodes: tuple[tuple[float, float], ...]
    """For node i, the share of drafts that had it, and of those in which it was accepted."""

    @property
    def tau(self) -> float:
        """Emitted tokens per pass of a sequence; plain decoding has 1."""
        return self.emitted / self.passes if self.passes else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def pass_total(self, passes: PassTimes) -> float:
        """Return the cost of all passes together, in plain passes."""
        return sum(count * passes.cost(rows) for rows, count in self.rows.items())

    def speedup(self, passes: PassTimes) -> float:
        """Return the expected speed-up over plain decoding: that of always drafting in full."""
        cost = self.pass_total(passes) + self.draft_total
        return self.emitted / cost if cost else 1.0
