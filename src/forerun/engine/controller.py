"""The interface of a controller, and a controller with a fixed budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.core.types import Draft, Seq


@dataclass(frozen=True, slots=True)
class DraftResult:
    """One sequence's draft in one step, and its result."""

    seq_id: int
    num_nodes: int
    path: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    """Tokens that the step emitted."""


class Controller(Protocol):
    """Chooses how much to draft, from what earlier drafts cost and brought."""

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """Return how many nodes each sequence may draft in the coming step, by its id."""
        ...

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Return the part of these drafts to verify, by sequence: all unless a controller says otherwise."""
        return drafts

    def learn(
        self, results: Sequence[DraftResult], num_rows: int | None, draft_s: float, pass_s: float
    ) -> None:
        """Learn from a finished step. `num_rows` is None if its pass also read prompts: its time is not used then."""
        return


@dataclass(frozen=True, slots=True)
class Fixed(Controller):
    """The same budget for every sequence, always: for comparisons."""

    budget: int

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """Return the same budget for every sequence."""
        return {seq.id: self.budget for seq in seqs}
