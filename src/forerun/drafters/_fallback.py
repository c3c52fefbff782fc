"""`a+b`: the first drafter drafts, unless the second is expected to bring more tokens a second.

For a first drafter that takes almost no time and often drafts nothing (`suffix`), and a second that takes time
and always has a draft (`draft_model`, `lookahead`). The first is asked in every step. The second is
asked about a sequence if

    (1 + accepted(k)) / (1 + added k)  >  1 + accepted by the first

where `accepted(k)` is expected of the second's best k nodes, `added` is the time of one of them in
steps without it, and both are decayed means of what was measured (`_benefit`). Where this does not
hold the second is tried again for a small share of the time.

The choice depends on sizes and on the past, never on tokens that were drawn, so the output keeps its
distribution. Time must not change what a seed gives: a seeded request whose drafts are drawn
always has them from the part that draws.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from forerun.core.means import DecayedMean
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafters._benefit import PRIOR, PRIOR_WEIGHT, Gains, NodeRates, StepTimes, new_mean
from forerun.drafters._pair import Pair
from forerun.drafters._rules import propose
from forerun.drafters.base import Drafter

TRIAL_STEPS = 2
"""Steps of a trial: in the first the second reads the sequence, in the next its cost is measured."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What was proposed in one step, by sequence."""

    start_s: float
    drafts: dict[int, Draft]
    asked: dict[int, int]
    """Nodes of the second, where it was asked."""
    expected: dict[int, float]
    """Tokens expected of the step, had the second not been asked."""


class Fallback(Pair):
    """Asks `first`, and `second` where it expects more of it."""

    def __init__(
        self, first: Drafter, second: Drafter, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(first, second)
        self.clock = clock
        self._accepted: defaultdict[int, DecayedMean] = defaultdict(new_mean)
        """Of the first's drafts, by their size."""
        self._rates, self._times, self._gains = NodeRates(), StepTimes(), Gains()
        self._proposal: Proposal | None = None
        self._trial_id, self._trial_steps = -1, 0

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """The first's drafts, or the second's where it expects more of them."""
        start_s = self.clock()
        firsts = propose(self.first, seqs, budgets)
        drafts = {seq.id: draft for seq, draft in zip(seqs, firsts, strict=True)}
        expected = {
            seq_id: 1 + self._accepted[len(draft)].given(PRIOR * len(draft), PRIOR_WEIGHT)
            for seq_id, draft in drafts.items()
        }
        chosen = self._choose(seqs, budgets, expected)
        group = [seq for seq in seqs if seq.id in chosen]
        wanted = [chosen[seq.id] for seq in group]
        seconds = propose(self.second, group, wanted) if group else []
        asked = {seq.id: len(draft) for seq, draft in zip(group, seconds, strict=True)}
        for seq, draft in zip(group, seconds, strict=True):
            if len(draft):
                drafts[seq.id] = self._with_confidence(draft)
        self._proposal = Proposal(start_s, drafts, asked, expected)
        return [drafts[seq.id] for seq in seqs]

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Learn how much was right and how long it took, and tell both."""
        if (proposal := self._proposal) is not None:
            seconds = self.clock() - proposal.start_s
            tokens = {s.id: outcome.emitted for s, outcome in zip(seqs, outcomes, strict=True)}
            of_first = [
                len(d) for s, d in zip(seqs, drafts, strict=True) if not proposal.asked.get(s.id)
            ]
            self._learn(proposal, tokens, len(seqs) + sum(of_first), seconds)
            self._proposal = None
        super().observe(seqs, drafts, outcomes)

    def end(self, seq: Seq) -> None:
        """Both forget the sequence."""
        self._gains.end(seq.id)
        super().end(seq)

    def _choose(
        self, seqs: Sequence[Seq], budgets: Sequence[int], expected: dict[int, float]
    ) -> dict[int, int]:
        """The sequences about which the second is asked, and how many nodes it may draft."""
        granted = {seq.id: budget for seq, budget in zip(seqs, budgets, strict=True)}
        seeded = {seq.id for seq in seqs if self.draws and self._is_seeded(seq)}
        chosen = {seq_id: granted[seq_id] for seq_id in seeded if self.second.draws}
        free = [seq_id for seq_id in granted if seq_id not in seeded]
        if not free or self._times.wants_alone:
            return chosen
        best = {seq_id: self._best(granted[seq_id]) for seq_id in free}
        better = [i for i in free if expected[i] < best[i][1] and self._gains.are_expected(i)]
        if better:
            return chosen | {seq_id: best[seq_id][0] for seq_id in better}
        return chosen | {seq_id: granted[seq_id] for seq_id in self._trial(free, expected)}

    def _is_seeded(self, seq: Seq) -> bool:
        return not seq.params.is_greedy and seq.params.seed is not None

    def _best(self, budget: int) -> tuple[int, float]:
        """How many nodes the second should draft, and the tokens they bring in the time of a step without it."""
        if not self._times.is_known:
            return 0, 0.0
        accepted = enumerate(self._rates.expected()[:budget], 1)
        rates = ((k, self._times.tokens_a_step(k, tokens)) for k, tokens in accepted)
        return max(rates, key=lambda each: each[1], default=(0, 0.0))

    def _trial(self, ids: Sequence[int], expected: dict[int, float]) -> list[int]:
        """The sequence of which the first expects least, if the exploration budget allows it."""
        if not self._trial_steps:
            if self._gains.budget_s < 0:
                return []
            self._trial_id = min(ids, key=expected.__getitem__)
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        return [seq_id for seq_id in ids if seq_id == self._trial_id]

    def _learn(
        self, proposal: Proposal, emitted: dict[int, tuple[int, ...]], num_rows: int, seconds: float
    ) -> None:
        """Record the drafts' acceptance, and the step's time if all the sequences it drafted for are there.

        `num_rows` are those of the pass without the second's nodes.
        """
        num_tokens = len(emitted)
        for seq_id, tokens in emitted.items():
            draft = proposal.drafts.get(seq_id, EMPTY_DRAFT)
            if proposal.asked.get(seq_id):
                num_tokens += self._rates.record(draft, tokens)
            elif len(draft):
                num_right = sum(is_right for _, is_right in draft.matches(tokens))
                self._accepted[len(draft)].record(num_right)
                num_tokens += num_right
        if not proposal.drafts.keys() <= emitted.keys():
            return  # what those that ended had is not known
        if not proposal.asked:
            self._times.record_alone(num_rows, seconds)
            self._gains.earn(seconds)
        elif alone_s := self._times.alone.predict(num_rows):
            if proposal.asked.keys() <= self._gains.running.keys():
                num_nodes = max(1, sum(proposal.asked.values()))
                self._times.record_with(len(emitted), num_nodes, seconds / alone_s)
            num_expected = sum(proposal.expected.get(seq_id, 1.0) for seq_id in emitted)
            gained_s = alone_s * num_tokens / num_expected - seconds
            self._gains.record(proposal.asked, gained_s)

    def _with_confidence(self, draft: Draft) -> Draft:
        """With the past rates of the second's nodes, where it gives no confidence itself."""
        if draft.probs is not None or draft.confidence is not None:
            return draft
        return replace(draft, confidence=self._rates.confidence(len(draft)))
