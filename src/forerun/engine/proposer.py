"""Where drafts are asked for, checked, cut and extended: what a pass verifies is decided here, memory apart.

    budgets -> propose -> end of the output, grammar -> controller -> prediction, forced tokens

A drafter that raises, or returns what is not a draft, ends no request: its sequences go on without it, as its state of
them cannot be trusted. Sequences that begin later are drafted for again, until it has failed too often.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from forerun.core.config import EngineConfig
from forerun.core.errors import ForerunError
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.decoding.grammar import with_forced
from forerun.drafters.base.contract import Drafter
from forerun.drafters.base.rules import check
from forerun.engine.controller import Controller
from forerun.engine.sequence import SequenceStep
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
        max_nodes: int,
        *,
        draft_forced: bool,
    ) -> None:
        """`max_len` is the context's, `max_nodes` the most of a draft; `stats` counts errors.

        Tokens that a grammar forces are drafted if `draft_forced`.
        """
        self.drafter, self.controller = drafter, controller
        self._is_own = is_own(drafter)
        self.isolates_errors = True
        """False: what the drafter raises ends the step, as tests of drafters want it."""
        self._max_nodes = max_nodes
        self._min_draft, self._draft_forced = config.min_draft, draft_forced
        self._stats, self._vocab_size, self._max_len = stats, vocab_size, max_len
        self._num_errors = 0
        self._drafted_for: dict[int, Seq] = {}
        """The sequences that the drafter has begun and not lost by an error."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Hand a sequence over to the drafter, unless that has failed too often."""
        if self._num_errors < MAX_ERRORS:
            self._drafted_for[seq.id] = seq
            try:
                self.drafter.begin(seq, outcome)
            except Exception as error:  # whatever it is, requests go on
                self._failed("begin", error)

    def propose(self, steps: Sequence[SequenceStep]) -> None:
        """Give every sequence that decodes its draft: the drafter's, then what is known without it."""
        decoding = [step for step in steps if step.state.has_begun]
        drafting = [
            step
            for step in decoding
            if step.seq.params.max_draft != 0 and not step.state.has_slow_masks
        ]
        if not drafting:
            return
        for step in drafting:
            room = min(self._max_nodes, self._max_len - len(step.seq.tokens))
            most = step.seq.params.max_draft
            step.room = room if most is None else min(room, most)
            if self.drafter.asking is not None and step.seq.id in self._drafted_for:
                step.num_unread = self.drafter.num_unread(step.seq)
        is_reading = len(decoding) < len(steps)
        self.controller.budgets(drafting, len(decoding) - len(drafting), is_reading=is_reading)
        if asked := [step for step in drafting if step.budget >= max(self._min_draft, 1)]:
            self._ask(asked)
        for step in drafting:
            if step.state.prediction is not None or step.state.pipeline.has_grammar:
                try:
                    step.draft = self._extended(step)
                except Exception as error:
                    step.fail(error)

    def observe(self, steps: Sequence[SequenceStep]) -> None:
        """Report to the drafter what became of the drafts."""
        if steps := [step for step in steps if step.seq.id in self._drafted_for]:
            try:
                self.drafter.observe(
                    [step.seq for step in steps],
                    [step.draft for step in steps],
                    [step.outcome for step in steps],
                )
            except Exception as error:
                self._failed("observe", error)

    def end(self, seq: Seq) -> None:
        """End a sequence in the drafter, unless that has lost it."""
        if self._drafted_for.pop(seq.id, None) is not None:
            try:
                self.drafter.end(seq)
            except Exception as error:
                self._failed("end", error)

    def _ask(self, steps: Sequence[SequenceStep]) -> None:
        """Ask the drafter within the budgets; its drafts are cut to what is allowed and worth its rows."""
        if known := [step for step in steps if step.seq.id in self._drafted_for]:
            try:
                self._take_proposals(known)
            except Exception as error:
                self._failed("propose", error)
        allowed = []
        for step in steps:
            draft, step.proposed = step.proposed, EMPTY_DRAFT
            if len(draft.tokens) >= self._min_draft:
                try:
                    step.proposed = step.draft = step.state.limit(draft)
                except Exception as error:
                    step.fail(error)
                    continue
                allowed.append(step)  # an empty one, too: asking brought nothing
        self.controller.trim(allowed)
        for step in allowed:
            step.num_drafted = len(step.draft.tokens)

    def _take_proposals(self, steps: Sequence[SequenceStep]) -> None:
        """Give each step what the drafter proposes of it. Raises DrafterError, and what the drafter does."""
        room, asking = [min(step.budget, step.room) for step in steps], self.drafter.asking
        if asking is not None:
            asking.wanted = [step.wants_models for step in steps]
            asking.cost = max(step.model_cost for step in steps)
        proposed = self.drafter.propose([step.seq for step in steps], room)
        # Of forerun's own drafters the contract's tests know the rest; their tables and networks are files.
        is_sound = self._is_own and all(
            max(draft.tokens, default=0) < self._vocab_size for draft in proposed
        )
        if not is_sound:
            check(self.drafter, proposed, room, self._vocab_size)
        for step, draft in zip(steps, proposed, strict=True):
            step.proposed = draft
        if asking is not None:
            for step, num_steps in zip(steps, asking.num_steps, strict=True):
                step.num_model_steps = num_steps
            steps[0].num_model_read, steps[0].model_load_s = asking.num_read, asking.load_s

    def _extended(self, step: SequenceStep) -> Draft:
        """Return the draft with the user's prediction and what the grammar forces; new nodes come last."""
        draft, state = step.draft, step.state
        if state.prediction is not None:
            draft = state.limit(state.prediction.extend(draft, step.seq.generated, step.room))
        if self._draft_forced and (grammar := state.grammar) is not None:
            draft = with_forced(draft, grammar, step.room, state.stops.tokens_left - 1)
        return draft

    def _failed(self, method: str, error: Exception) -> None:
        """Count an error of the drafter, log the first one, and take all sequences away from it."""
        if not self.isolates_errors:
            raise error
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


def is_own(drafter: Drafter) -> bool:
    """Tell whether a drafter and all its parts are forerun's, whose drafts the tests of the contract check."""
    return type(drafter).__module__.startswith("forerun.") and all(map(is_own, drafter.parts))
