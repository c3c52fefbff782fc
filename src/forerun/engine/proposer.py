"""Where drafts are asked for, checked, cut and extended: what a pass verifies is decided here, memory apart.

    budgets -> propose -> end of the output, grammar -> controller -> prediction, forced tokens

What has to give way where blocks of keys and values run short is `pressure.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forerun.core.config import EngineConfig
from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.decoding.grammar import with_forced, without_forbidden
from forerun.drafting.base import Drafter
from forerun.engine.controller import Controller, DraftResult
from forerun.engine.failures import Failures
from forerun.engine.sequence import SequenceState, StepResult


class Proposer:
    """Asks one drafter within the budgets of one controller."""

    def __init__(
        self,
        drafter: Drafter,
        controller: Controller,
        config: EngineConfig,
        failures: Failures,
        max_len: int,
        max_nodes: int | None = None,
        *,
        draft_forced: bool,
    ) -> None:
        """`max_len` is the context's, `max_nodes` the most of a draft, None for no limit.

        `failures` gets what goes wrong for a single sequence. Tokens that a grammar forces are drafted if
        `draft_forced`.
        """
        self.drafter, self.controller = drafter, controller
        self._budget, self._min_draft = config.draft_budget, config.min_draft
        if max_nodes is not None:
            self._budget = min(self._budget, max_nodes)
        self._max_len, self._draft_forced = max_len, draft_forced
        self._failures = failures
        self._num_proposed: dict[int, int] = {}  # nodes of the drafter's own, by sequence

    def propose(self, running: Iterable[SequenceState]) -> dict[int, Draft]:
        """Return a draft for every sequence that decodes, by its id: the drafter's, then what is known without it."""
        states = {
            state.seq.id: state
            for state in running
            if state.has_begun and state.seq.params.max_draft != 0
        }
        drafts = self._ask(states)
        self._num_proposed = {seq_id: len(draft) for seq_id, draft in drafts.items()}
        for i, state in states.items():
            with self._failures.of(i):
                drafts[i] = self._extended(state, drafts.get(i, EMPTY_DRAFT))
        return drafts

    def results(self, results: Sequence[StepResult]) -> list[DraftResult]:
        """Return the step's trials for the controller: nodes that were not the drafter's do not count as its."""
        found = []
        for result in results:
            i, outcome = result.rows.seq.id, result.outcome
            num_nodes = min(self._num_proposed.get(i, 0), len(result.rows.draft))
            found.append(DraftResult(i, num_nodes, outcome.path, outcome.emitted))
        return found

    def _ask(self, states: dict[int, SequenceState]) -> dict[int, Draft]:
        """Ask the drafter for sequences with a budget, and cut its drafts to what is allowed and worth its rows."""
        all_seqs = [state.seq for state in states.values()]
        budgets = self.controller.budgets(all_seqs) if all_seqs else {}
        seqs = [seq for seq in all_seqs if budgets[seq.id] >= max(self._min_draft, 1)]
        if not seqs:
            return {}
        rooms = [self._room(seq, min(budgets[seq.id], self._budget)) for seq in seqs]
        drafts = self.drafter.propose(seqs, rooms)
        drafted = {}
        for seq, draft in zip(seqs, drafts, strict=True):
            if len(draft) >= self._min_draft:
                with self._failures.of(seq.id):
                    # an empty one tells the controller that asking brought nothing
                    drafted[seq.id] = _allowed(states[seq.id], draft)
        return self.controller.trim(drafted)

    def _extended(self, state: SequenceState, draft: Draft) -> Draft:
        """Return the draft with the user's prediction and what the grammar forces; new nodes come last."""
        seq, room = state.seq, self._room(state.seq, self._budget)
        if state.prediction is not None:
            draft = _allowed(state, state.prediction.extend(draft, seq.generated, room))
        grammar = state.grammar if self._draft_forced else None
        if grammar is None:
            return draft
        return with_forced(draft, grammar, room, state.stops.tokens_left - 1)

    def _room(self, seq: Seq, budget: int) -> int:
        """Return how many nodes a sequence may draft, with what it asked for and what is left of the context."""
        asked = seq.params.max_draft
        return min(budget if asked is None else min(budget, asked), self._max_len - len(seq.tokens))


def _allowed(state: SequenceState, draft: Draft) -> Draft:
    """Return the nodes that lie before the end of the output and that the grammar allows."""
    draft = draft.trim_depth(state.stops.tokens_left - 1)
    grammar = state.grammar
    return draft if grammar is None else without_forbidden(draft, grammar)
