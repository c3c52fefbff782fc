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
from dataclasses import dataclass, replace

from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafters._pair import Pair
from forerun.drafters._worth import Expectation, Ledger, Nodes, Price
from forerun.drafters.base import Drafter

TRIAL_STEPS = 2
"""Steps of a trial: in the first the second reads what it missed, in the next it shows what it costs."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step: when it began, its drafts, and how many nodes the second drafted where it was asked."""

    start_s: float
    drafts: dict[int, Draft]
    asked: dict[int, int]
    tokens: dict[int, float]
    """Expected of the step, had the first spoken alone."""


class Chain(Pair):
    """Asks `first`, and `second` where it expects more of it."""

    def __init__(
        self, first: Drafter, second: Drafter, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(first, second)
        self.clock = clock
        self._of_first, self._of_second = Expectation(), Nodes()
        self._price, self._ledger = Price(), Ledger()
        self._turn: Turn | None = None
        self._trial_of, self._trial_steps = -1, 0

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """The first's drafts, or the second's where it expects more of them."""
        start_s = self.clock()
        firsts = self.first.propose(seqs, budgets)
        drafts = {seq.id: draft for seq, draft in zip(seqs, firsts, strict=True)}
        tokens = {seq_id: 1 + self._of_first.of(len(draft)) for seq_id, draft in drafts.items()}
        asked: dict[int, int] = {}
        chosen = self._choose(seqs, tokens, budgets)
        group = [seq for seq in seqs if seq.id in chosen]
        seconds = self.second.propose(group, [chosen[seq.id] for seq in group]) if group else []
        for seq, draft in zip(group, seconds, strict=True):
            asked[seq.id] = len(draft)
            if len(draft):
                drafts[seq.id] = self._confident(draft)
        self._turn = Turn(start_s, drafts, asked, tokens)
        return [drafts[seq.id] for seq in seqs]

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Learn who was right how far and how long it took, and tell both."""
        if self._turn is not None:
            seconds = self.clock() - self._turn.start_s
            self._learn(self._turn, seconds, seqs, drafts, outcomes)
            self._turn = None
        super().observe(seqs, drafts, outcomes)

    def end(self, seq: Seq) -> None:
        """Both forget the sequence."""
        self._ledger.close(seq.id)
        super().end(seq)

    def _choose(
        self, seqs: Sequence[Seq], tokens: dict[int, float], budgets: Sequence[int]
    ) -> dict[int, int]:
        """Those of whom the second is asked, and the nodes it may draft; the first is expected to bring `tokens`."""
        granted = {seq.id: budget for seq, budget in zip(seqs, budgets, strict=True)}
        bound = {seq.id for seq in seqs if self._is_bound(seq)}
        chosen = {seq_id: granted[seq_id] for seq_id in bound if self.second.draws}
        free = [seq.id for seq in seqs if seq.id not in bound]
        if not free or self._price.wants_alone:
            return chosen
        best = {seq_id: self._best(granted[seq_id]) for seq_id in free}
        weak = [i for i in free if tokens[i] < best[i][1] and self._ledger.pays(i)]
        if weak:
            return chosen | {seq_id: best[seq_id][0] for seq_id in weak}
        return chosen | {seq_id: granted[seq_id] for seq_id in self._trial(free, tokens)}

    def _is_bound(self, seq: Seq) -> bool:
        return self.draws and not seq.params.is_greedy and seq.params.seed is not None

    def _best(self, budget: int) -> tuple[int, float]:
        """How many nodes the second should draft, and the tokens they bring in the time of a step without it."""
        if not self._price.is_known:
            return 0, 0.0
        tokens = self._of_second.expected()[:budget]
        rates = {k: self._price.rate(k, expected) for k, expected in enumerate(tokens, 1)}
        best = max(rates, key=rates.__getitem__, default=0)
        return best, rates.get(best, 0.0)

    def _trial(self, ids: Sequence[int], tokens: dict[int, float]) -> list[int]:
        """The sequence of which the first knows least, if the purse allows it."""
        if not self._trial_steps:
            if self._ledger.purse < 0:
                return []
            self._trial_of = min(ids, key=tokens.__getitem__)
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        return [seq_id for seq_id in ids if seq_id == self._trial_of]

    def _learn(
        self,
        turn: Turn,
        seconds: float,
        seqs: Sequence[Seq],
        verified: Sequence[Draft],
        outcomes: Sequence[Outcome],
    ) -> None:
        num_tokens = num_rows = len(seqs)
        for seq, kept, outcome in zip(seqs, verified, outcomes, strict=True):
            draft = turn.drafts.get(seq.id, EMPTY_DRAFT)
            if turn.asked.get(seq.id):
                num_tokens += self._of_second.record(draft, outcome.emitted)
            elif len(draft):
                num_said = sum(is_hit for _, is_hit in draft.judged(outcome.emitted))
                self._of_first.record(len(draft), num_said)
                num_tokens += num_said
                num_rows += len(kept)
        ids = [seq.id for seq in seqs]  # also those that nothing was drafted for
        if not turn.drafts.keys() <= {*ids}:
            return  # what those that ended had is not known
        if not turn.asked:
            self._price.record_alone(num_rows, seconds)
            self._ledger.earn(seconds)
        elif alone_s := self._price.alone.predict(num_rows):
            if turn.asked.keys() <= self._ledger.accounts.keys():
                num_nodes = max(1, sum(turn.asked.values()))
                self._price.record_with(len(seqs), num_nodes, seconds / alone_s)
            num_expected = sum(turn.tokens.get(seq_id, 1.0) for seq_id in ids)
            self._ledger.book(turn.asked, alone_s * num_tokens / num_expected - seconds)

    def _confident(self, draft: Draft) -> Draft:
        """With what became of the second's drafts before, where it says nothing of them itself."""
        if draft.probs is not None or draft.confidence is not None:
            return draft
        return replace(draft, confidence=self._of_second.confidence(len(draft)))
