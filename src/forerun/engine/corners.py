"""Which budgets are worth considering: the corners of a draft's tokens over its rows.

Between two corners a larger budget is better: nodes that gain little themselves are judged with
those that come after them. From corner to corner a row is worth ever less, so whoever adds the
worthiest steps of several drafts first adds each draft's nodes in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One enlargement of one sequence's budget, and what it is expected to add."""

    seq_id: int
    budget: int
    tokens: float
    rows: float

    @property
    def worth(self) -> float:
        """Tokens a row."""
        return self.tokens / self.rows if self.rows else float("inf")


def corners(seq_id: int, nodes: Iterable[tuple[float, float]]) -> list[Step]:
    """The steps from corner to corner of a draft whose nodes add (tokens, rows) each.

    >>> [(s.budget, s.tokens) for s in corners(0, [(0.9, 1), (0.1, 1), (0.5, 1)])]
    [(1, 0.9), (3, 0.6)]
    """
    found: list[Step] = []
    for i, (tokens, rows) in enumerate(nodes, 1):
        step = Step(seq_id, i, tokens, rows)
        while found and step.worth >= found[-1].worth:
            last = found.pop()
            step = Step(seq_id, i, last.tokens + step.tokens, last.rows + step.rows)
        found.append(step)
    return found
