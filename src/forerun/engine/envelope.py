"""Which budgets to consider: the concave envelope of a draft's expected tokens over its rows.

Between two corners a larger budget is better: nodes that gain little themselves are judged with
those that come after them. Tokens a row fall from corner to corner, so adding the increments of
several drafts by descending tokens a row adds each draft's nodes in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Increment:
    """One enlargement of one sequence's budget, and what it is expected to add."""

    seq_id: int
    budget: int
    tokens: float
    rows: float

    @property
    def ratio(self) -> float:
        """Tokens a row."""
        return self.tokens / self.rows if self.rows else float("inf")


def concave_envelope(seq_id: int, nodes: Iterable[tuple[float, float]]) -> list[Increment]:
    """The steps from corner to corner of a draft whose nodes add (tokens, rows) each.

    >>> [(s.budget, s.tokens) for s in concave_envelope(0, [(0.9, 1), (0.1, 1), (0.5, 1)])]
    [(1, 0.9), (3, 0.6)]
    """
    found: list[Increment] = []
    for i, (tokens, rows) in enumerate(nodes, 1):
        step = Increment(seq_id, i, tokens, rows)
        while found and step.ratio >= found[-1].ratio:
            last = found.pop()
            step = Increment(seq_id, i, last.tokens + step.tokens, last.rows + step.rows)
        found.append(step)
    return found
