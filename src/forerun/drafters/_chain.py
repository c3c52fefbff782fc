"""Two drafters, one voice: the first speaks unless the second is expected to bring more tokens a second.

Made for a drafter that costs nothing and is silent most of the time (`suffix`), before one that
costs something and always has an answer (`draft_model`, `lookahead`). The first is always asked.
The second is asked only if its drafts, of late, brought more tokens for the time of a step with
them than the first's draft of this size does for a step without; a second that is too dear is left out,
whatever it knows, and tried again for a small share of the time.

The choice looks at sizes and at the past, never at tokens that were drawn, so the law of the output
is kept. Time must not decide what a seed says: a seeded request whose drafts are drawn
always has them from the part that draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafters._pair import Pair
from forerun.drafters._worth import Expectation, Mean, Price, expected
from forerun.drafters.base import Drafter

TRIAL_STEPS = 2
"""Steps of a trial: in the first the second reads what it missed, in the next it shows what it costs."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step: when it began, whose drafts it has, and whom the second was asked about."""

    start_s: float
    drafts: dict[int, Draft]
    asked: frozenset[int]
    is_usual: bool
    """The second had been asked about all of them before: it read no whole prompt."""


class Chain(Pair):
    """Asks `first`, and `second` where it expects more of it."""

    def __init__(
        self, first: Drafter, second: Drafter, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(first, second)
        self.clock = clock
        self._of_first, self._of_second = Expectation(), Mean()
        self._usual = 0  # size of the second's last draft
        self._price = Price()
        self._turn: Turn | None = None
        self._read: set[int] = set()
        self._trial_of, self._trial_steps = -1, 0

    def propose(self, seqs: Sequence[Seq], budget: int) -> list[Draft]:
        """The first's drafts, or the second's where it expects more of them."""
        start_s = self.clock()
        drafts = {seq.id: d for seq, d in zip(seqs, self.first.propose(seqs, budget), strict=True)}
        asked = self._choose(seqs, drafts)
        for seq, draft in zip(
            asked, self.second.propose(asked, budget) if asked else (), strict=True
        ):
            if len(draft):
                drafts[seq.id] = draft
                self._usual = len(draft)
        ids = frozenset(seq.id for seq in asked)
        self._turn = Turn(start_s, drafts, ids, ids <= self._read)
        self._read |= ids
        return [drafts[seq.id] for seq in seqs]

    def observe(self, seqs: Sequence[Seq], outcomes: Sequence[Outcome]) -> None:
        """Learn who was right how far and how long it took, and tell both."""
        if self._turn is not None:
            self._learn(self._turn, self.clock() - self._turn.start_s, seqs, outcomes)
            self._turn = None
        super().observe(seqs, outcomes)

    def end(self, seq: Seq) -> None:
        """Both forget the sequence."""
        self._read.discard(seq.id)
        super().end(seq)

    def _choose(self, seqs: Sequence[Seq], drafts: dict[int, Draft]) -> list[Seq]:
        """Those of whom the second is asked."""
        is_bound = {seq.id: self._is_bound(seq) for seq in seqs}
        bound = [seq for seq in seqs if is_bound[seq.id] and getattr(self.second, "draws", False)]
        if self._price.wants_alone(len(seqs)):
            return bound
        free = [seq for seq in seqs if not is_bound[seq.id]]
        tokens = {seq.id: self._of_first.of(len(drafts[seq.id])) for seq in free}
        weak = [seq for seq in free if tokens[seq.id] < self._wanted()]
        return bound + weak or self._trial(free, tokens)

    def _is_bound(self, seq: Seq) -> bool:
        return self.draws and not seq.params.is_greedy and seq.params.seed is not None

    def _wanted(self) -> float:
        """Tokens that a draft of the first must bring for the second not to be asked."""
        if not self._price.is_known:
            return 0.0
        tokens = expected(self._of_second, self._usual)
        return (1 + tokens) / (1 + self._price.extra.value) - 1

    def _trial(self, seqs: Sequence[Seq], tokens: dict[int, float]) -> list[Seq]:
        """The sequence of which the first knows least, if the purse allows it."""
        if not self._trial_steps:
            if not seqs or self._price.purse < 0:
                return []
            self._trial_of = min(tokens, key=tokens.__getitem__)
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        return [seq for seq in seqs if seq.id == self._trial_of]

    def _learn(
        self, turn: Turn, seconds: float, seqs: Sequence[Seq], outcomes: Sequence[Outcome]
    ) -> None:
        num_seqs, num_accepted = len(turn.drafts), 0
        for seq, outcome in zip(seqs, outcomes, strict=True):
            draft = turn.drafts.get(seq.id, EMPTY_DRAFT)
            said = draft.agrees(outcome.emitted)
            num_accepted += said
            if seq.id in turn.asked:
                self._of_second.record(said)
            elif len(draft):
                self._of_first.record(len(draft), said)
        if not turn.asked:
            self._price.record_alone(num_seqs, seconds, num_accepted)
            return
        self._price.record_with(
            num_seqs, len(turn.asked), seconds, num_accepted, is_usual=turn.is_usual
        )
