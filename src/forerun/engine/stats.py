"""Counts of drafted, accepted and emitted tokens, and seconds.

*drafted*: nodes proposed; *accepted*: drafted tokens kept; *emitted*: accepted plus the target's own
token; *tau*: emitted per target pass of a sequence (plain decoding is 1). Passes over the prompt are
not counted: they emit a token without a draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from forerun.core.types import Outcome


@dataclass(slots=True, repr=False)
class SpecStats:
    """Counts of one sequence, or of many added up."""

    passes: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    drafter_errors: int = 0
    """Calls in which the drafter raised; the sequences it had went on without it."""
    accepted_by_depth: list[int] = field(default_factory=list)
    drafted_by_depth: list[int] = field(default_factory=list)

    def record(self, num_nodes: int, num_levels: int, outcome: Outcome) -> None:
        """Count one verified draft of one sequence, of so many nodes on so many levels."""
        self.passes += 1
        self.emitted += len(outcome.emitted)
        if not num_nodes:
            return
        self.drafts += 1
        self.drafted += num_nodes
        self.accepted += len(outcome.path)
        depths = (self.drafted_by_depth, num_levels), (self.accepted_by_depth, len(outcome.path))
        for counts, depth in depths:
            if len(counts) < depth:
                counts += [0] * (depth - len(counts))
            for i in range(depth):
                counts[i] += 1

    def add(self, other: SpecStats) -> None:
        """Add the counts of another."""
        for name in ("passes", "drafts", "drafted", "accepted", "emitted", "drafter_errors"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("accepted_by_depth", "drafted_by_depth"):
            pairs = zip_longest(getattr(self, name), getattr(other, name), fillvalue=0)
            setattr(self, name, [a + b for a, b in pairs])

    @classmethod
    def total(cls, parts: Iterable[SpecStats]) -> SpecStats:
        """Return the counts of all parts together."""
        counts = cls()
        for part in parts:
            counts.add(part)
        return counts

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={value}" for name, value in asdict(self).items() if value)
        return f"SpecStats(tau={self.tau:.2f}{counts and ', '}{counts})"

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, `tau` and `acceptance_rate`, as JSON has them.

        >>> SpecStats(passes=2, emitted=5).to_dict()["tau"]
        2.5
        """
        return asdict(self) | {"tau": self.tau, "acceptance_rate": self.acceptance_rate}

    @property
    def rejected(self) -> int:
        """Drafted tokens that were not kept."""
        return self.drafted - self.accepted

    @property
    def tau(self) -> float:
        """Tokens emitted per pass; 1 for plain decoding, 0 before the first pass."""
        return self.emitted / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of the drafts that reached each depth whose token there was kept."""
        pairs = zip_longest(self.accepted_by_depth, self.drafted_by_depth, fillvalue=0)
        return [accepted / drafted for accepted, drafted in pairs]


@dataclass(slots=True)
class Timers:
    """Steps, and their seconds: in the drafter, which proposes and observes, and in the target's passes."""

    draft_s: float = 0.0
    verify_s: float = 0.0
    """Passes, and what is done with them."""
    num_passes: int = 0
    num_rows: int = 0
    """Of those passes."""
    clock: Callable[[], float] = time.perf_counter
