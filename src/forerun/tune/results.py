"""What autotune measures: the time of passes, and what drafting with one setting brings and costs.

Counts of tokens are exact and the same on every machine; times are medians of this one. Everything
is compared in plain passes: what one row of one sequence takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """What passes take. Costs are in plain passes: one row of one sequence at the same context."""

    times: tuple[PassTime, ...]

    @cached_property
    def plain_ms(self) -> float:
        """The plain pass, over all contexts."""
        plain = self._plain()
        return sum(plain.values()) / len(plain)

    def cost(self, rows: float) -> float:
        """A pass of one sequence and so many rows, by the nearest that were measured."""
        return self._alone.predict(rows)

    def costs(self, max_seqs: int) -> CostCurve:
        """By rows, in batches up to `max_seqs`: the mean over contexts and batches.

        More rows never cost less, whatever the noise says.
        """
        plain, found = self._plain(), dict[int, list[float]]()
        for time in self.times:
            if time.num_seqs <= max_seqs:
                found.setdefault(time.rows, []).append(time.ms / plain[time.context])
        means = [sum(found[rows]) / len(found[rows]) for rows in sorted(found)]
        return CostCurve(dict(zip(sorted(found), accumulate(means, max), strict=True)))

    @cached_property
    def _alone(self) -> CostCurve:
        return self.costs(1)

    @classmethod
    def from_json(cls, value: Sequence[Mapping[str, object]]) -> PassTimes:
        """Read a list of times. Raises ValueError, KeyError, TypeError."""
        found = cls(tuple(_pass_time(row) for row in value))
        if not {time.context for time in found.times} == found._plain().keys() != set():
            raise ValueError("plain passes are missing")
        return found

    def _plain(self) -> dict[int, float]:
        return {t.context: t.ms for t in self.times if (t.num_seqs, t.rows) == (1, 1)}


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """What drafting in full with one setting showed on some prompts, one sequence at a time."""

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
    """Of node i: the share of drafts that had it, and of those in which it was accepted."""

    @property
    def tau(self) -> float:
        """Tokens a pass."""
        return self.emitted / self.passes if self.passes else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def pass_total(self, passes: PassTimes) -> float:
        """Cost of all passes together, in plain passes."""
        return sum(count * passes.cost(rows) for rows, count in self.rows.items())

    def speedup(self, passes: PassTimes) -> float:
        """Expected tokens a second over plain decoding: that of always drafting in full."""
        cost = self.pass_total(passes) + self.draft_total
        return self.emitted / cost if cost else 1.0

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> DrafterFigures:
        """Read what `asdict` and JSON made of it; other keys are skipped. Raises ValueError, KeyError, TypeError."""
        rows, cost, nodes = value["rows"], value["draft_cost"], value["nodes"]
        if not (isinstance(rows, dict) and isinstance(cost, dict) and isinstance(nodes, list)):
            raise ValueError("rows, draft_cost or nodes are missing")
        return cls(
            drafter=str(value["drafter"]),
            **{key: int(_number(value, key)) for key in ("passes", "emitted", "drafted")},
            accepted=int(_number(value, "accepted")),
            rows={int(k): int(_number(rows, k)) for k in rows},
            draft_cost={int(k): _number(cost, k) for k in cost},
            draft_total=_number(value, "draft_total"),
            nodes=tuple((_share(drafted), _share(accepted)) for drafted, accepted in nodes),
        )


def _pass_time(row: Mapping[str, object]) -> PassTime:
    context, num_seqs, rows = (int(_number(row, key)) for key in ("context", "num_seqs", "rows"))
    time = PassTime(context, num_seqs, rows, _number(row, "ms"))
    if not (time.rows and time.num_seqs and time.ms):
        raise ValueError("a pass of no rows, sequences or time")
    return time


def _number(row: Mapping[str, object], key: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{key} is {value}")
    return value


def _share(value: object) -> float:
    share = _number({"share": value}, "share")
    if share > 1:
        raise ValueError(f"share is {value}")
    return share
