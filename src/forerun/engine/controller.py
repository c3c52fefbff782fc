"""Who says how much to draft: what a controller is told, what it may know beforehand, and one that never changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forerun.core.costs import CostCurve
from forerun.core.types import Draft, Seq


@dataclass(frozen=True, slots=True)
class DraftResult:
    """What became of one sequence's draft in one step."""

    seq_id: int
    num_nodes: int
    path: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    """What the step emitted."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What was measured earlier (`engine/profile.py`), in plain passes of one sequence; measurements replace it."""

    pass_cost: CostCurve = field(default_factory=lambda: CostCurve({1: 1.0, 4: 1.15, 16: 2.0}))
    """A pass by its rows; without an earlier run rows are taken to be nearly free up to four."""
    draft_cost: CostCurve = field(default_factory=CostCurve)
    """A proposal by its nodes."""
    nodes: tuple[tuple[float, float], ...] = ()
    """Of node i: how often drafts had it, and how often it was accepted then."""


class Controller(Protocol):
    """Says how much to draft, and is told what came of it."""

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """Return nodes that each sequence may draft in the coming step, by its id."""
        ...

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Return what of these drafts is verified, by sequence: all unless a controller says otherwise."""
        return drafts

    def learn(
        self, results: Sequence[DraftResult], num_rows: int | None, draft_s: float, pass_s: float
    ) -> None:
        """The step is over. `num_rows` is None if its pass also read prompts: its time is not used then."""
        return


@dataclass(frozen=True, slots=True)
class Fixed(Controller):
    """The same budget for every sequence, always: for comparisons."""

    budget: int

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """The budget."""
        return {seq.id: self.budget for seq in seqs}
