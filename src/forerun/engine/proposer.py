"""Where drafts are asked for, checked, cut and extended: what a pass verifies is decided here, memory apart.

    budgets -> propose -> end of the output, grammar -> controller -> prediction, forced tokens

A drafter that raises, or returns what is no draft, ends no request: its sequences go on without it, as its state of
them cannot be trusted. Sequences that begin later are drafted for again, until it has failed too often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from forerun.core.config import EngineConfig
from forerun.core.errors import ForerunError
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.decoding.grammar import with_forced, without_forbidden
from forerun.drafting.base import Drafter
from forerun.drafting.rules import check
from forerun.engine.controller import Controller, DraftResult
from forerun.engine.sequence import SequenceState, SequenceStep
from forerun.engine.stats import SpecStats

MAX_ERRORS = 3
"""Errors after which a drafter is not asked any more."""

log = logging.getLogger(__name__)


class Proposer:
    """Asks one drafter within the budgets of one controller."""

    def __init__(
        self,
        drafter: Drafter,
        controller: Controller,
        config: EngineConfig,
        stats: SpecStats,
        vocab_size: int,
        max_len: int,
        max_nodes: int | None = None,
        *,
        draft_forced: bool,
    ) -> None:
        """`max_len` is the context's, `max_nodes` the most of a draft, None for no limit; `stats` counts errors.

        Tokens that a grammar forces are drafted if `draft_forced`.
        """
        self.drafter, self.controller = drafter, controller
        self.isolates_errors = True
        """False: what the drafter raises ends the step, as tests of drafters want it."""
        self._budget = min(
            config.draft_budget, config.draft_budget if max_nodes is None else max_nodes
        )
        self._min_draft, self._draft_forced = config.min_draft, draft_forced
        self._stats, self._vocab_size, self._max_len = stats, vocab_size, max_len
        self._num_errors = 0
        self._drafted_for: dict[int, Seq] = {}
        """The sequences that the drafter has begun and not lost by an error."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Hand a sequence over to the drafter, unless that has failed too often."""
        if self._num_errors < MAX_ERRORS:
            self._drafted_for[seq.id] = seq
            with self._isolated("begin"):
                self.drafter.begin(seq, outcome)

    def propose(self, steps: Sequence[SequenceStep]) -> None:
        """Give every sequence that decodes its draft: the drafter's, then what is known without it."""
        decoding = [step for step in steps if step.state.has_begun]
        drafting = [
            step
            for step in decoding
            if step.seq.params.max_draft != 0 and not step.state.has_slow_masks
        ]
        if drafting:
            is_reading = len(decoding) < len(steps)
            budgets = self.controller.budgets(
                [step.seq for step in drafting],
                len(decoding) - len(drafting),
                is_reading=is_reading,
            )
            self._ask(drafting, budgets)
        for step in drafting:
            with step.isolated():
                step.draft = self._extended(step.state, step.draft)

    def observe(self, steps: Sequence[SequenceStep]) -> None:
        """Report to the drafter what became of the drafts."""
        if steps := [step for step in steps if step.seq.id in self._drafted_for]:
            with self._isolated("observe"):
                self.drafter.observe(
                    [step.seq for step in steps],
                    [step.draft for step in steps],
                    [step.outcome for step in steps],
                )

    def end(self, seq: Seq) -> None:
        """End a sequence in the drafter, unless that has lost it."""
        if self._drafted_for.pop(seq.id, None) is not None:
            with self._isolated("end"):
                self.drafter.end(seq)

    def learn(
        self,
        steps: Sequence[SequenceStep],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int,
    ) -> None:
        """Report a finished step to the controller: nodes that were not the drafter's do not count as its."""
        results = []
        for step in steps:
            num_nodes, outcome = min(step.num_drafted, len(step.draft)), step.outcome
            results.append(DraftResult(step.seq.id, num_nodes, outcome.path, outcome.emitted))
        self.controller.learn(results, num_rows, draft_s, pass_s, num_read)

    def _ask(self, steps: Sequence[SequenceStep], budgets: dict[int, int]) -> None:
        """Ask the drafter for sequences with a budget, and cut its drafts to what is allowed and worth its rows."""
        requested = {
            step.seq.id: step for step in steps if budgets[step.seq.id] >= max(self._min_draft, 1)
        }
        drafts = dict[int, Draft]()
        for i, draft in self._drafts(requested, budgets).items():
            if len(draft) >= self._min_draft:
                with requested[i].isolated():
                    # an empty one tells the controller that asking brought nothing
                    drafts[i] = _allowed(requested[i].state, draft)
        if requested:
            for i, draft in self.controller.trim(drafts).items():
                requested[i].draft, requested[i].num_drafted = draft, len(draft)

    def _drafts(self, steps: dict[int, SequenceStep], budgets: dict[int, int]) -> dict[int, Draft]:
        """Return the drafter's checked drafts by sequence, empty ones of those that it has lost."""
        drafts = dict.fromkeys(steps, EMPTY_DRAFT)
        if seqs := [step.seq for i, step in steps.items() if i in self._drafted_for]:
            limits = [self._most_nodes(seq, min(budgets[seq.id], self._budget)) for seq in seqs]
            with self._isolated("propose"):
                proposed = self.drafter.propose(seqs, limits)
                check(self.drafter, proposed, limits, self._vocab_size)
                drafts |= {seq.id: draft for seq, draft in zip(seqs, proposed, strict=True)}
        return drafts

    def _extended(self, state: SequenceState, draft: Draft) -> Draft:
        """Return the draft with the user's prediction and what the grammar forces; new nodes come last."""
        seq, most_nodes = state.seq, self._most_nodes(state.seq, self._budget)
        if state.prediction is not None:
            draft = _allowed(state, state.prediction.extend(draft, seq.generated, most_nodes))
        grammar = state.grammar if self._draft_forced else None
        if grammar is None:
            return draft
        return with_forced(draft, grammar, most_nodes, state.stops.tokens_left - 1)

    def _most_nodes(self, seq: Seq, budget: int) -> int:
        """Return how many nodes a sequence may draft, with what it asked for and what is left of the context."""
        requested = seq.params.max_draft
        return min(
            budget if requested is None else min(budget, requested), self._max_len - len(seq.tokens)
        )

    @contextmanager
    def _isolated(self, method: str) -> Iterator[None]:
        """Count an error of the drafter inside, log the first one, and take all sequences away from it."""
        try:
            yield
        except Exception as error:  # whatever it is, requests go on
            if not self.isolates_errors:
                raise
            self._stats.drafter_errors += 1
            self._num_errors += 1
            if self._num_errors == 1:
                self._log(method, error)
            lost, self._drafted_for = [*self._drafted_for.values()], {}
            for seq in lost:
                with suppress(Exception):  # let it free what it holds, if it still can
                    self.drafter.end(seq)

    def _log(self, method: str, error: Exception) -> None:
        """Describe an error in one line, with its place in the drafter's own code."""
        if isinstance(error, ForerunError):
            log.warning("%s; going on without drafts", error)
            return
        name, what = type(self.drafter).__name__, f"{type(error).__name__}: {error}"
        message = "drafter %s failed in %s: %s; going on without drafts"
        log.warning(message, name, method, what, exc_info=error)


def _allowed(state: SequenceState, draft: Draft) -> Draft:
    """Return the nodes that lie before the end of the output and that the grammar allows."""
    draft = draft.trim_depth(state.stops.tokens_left - 1)
    grammar = state.grammar
    return draft if grammar is None else without_forbidden(draft, grammar)
