"""The benefit of asking a fallback's second drafter: the tokens its drafts bring, and the time they take.

Nothing here reads a clock: `_fallback` does, and tests give it one of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from forerun.core import tree
from forerun.core.costs import CostCurve
from forerun.core.means import DecayedMean
from forerun.core.types import Draft

MEMORY = 0.95
"""Weight of an observation after one more."""
PRIOR = 0.5
"""Chance of a node before anything was observed."""
PRIOR_WEIGHT = 2
"""Observations that a prior weighs as much as."""
OUTLIER = 2.0
"""An added time counts as at most so many times the mean: another prompt was read in that step."""
EXPLORATION_SHARE = 0.01
"""Share of the time that asking may cost where no gain is expected."""
ALONE_FIRST = 16
"""Steps without the second drafter before it is first asked, so that its cost is told from the first's."""
ALONE_EVERY = 64
"""Steps with it after which one without is measured anew."""


def new_mean() -> DecayedMean:
    """A mean of what was observed."""
    return DecayedMean(MEMORY)


@dataclass(slots=True)
class NodeRates:
    """How often node i of a draft was right once its parent was."""

    rates: list[DecayedMean] = field(default_factory=list)
    parents: tuple[int, ...] = ()
    """Of the largest draft, the latest of several."""

    def record(self, draft: Draft, tokens: Sequence[int]) -> int:
        """Compare a whole draft, cut or not, with the tokens that came; how many of its nodes were right."""
        self.rates += [new_mean() for _ in range(len(draft) - len(self.rates))]
        if len(draft) >= len(self.parents):
            self.parents = draft.parents
        num_right = 0
        for i, is_right in draft.matches(tokens):
            self.rates[i].record(is_right)
            num_right += is_right
        return num_right

    def confidence(self, num_nodes: int) -> tuple[float, ...]:
        """The chance of each node to be right once its parent is."""
        known = [rate.given(PRIOR, PRIOR_WEIGHT) for rate in self.rates[:num_nodes]]
        return (*known, *[PRIOR] * (num_nodes - len(known)))

    def expected(self) -> list[float]:
        """Accepted tokens expected of a draft's first 1, 2, ... nodes."""
        chances = self.confidence(len(self.parents))
        return [*accumulate(tree.path_products(self.parents, chances))]


@dataclass(slots=True)
class StepTimes:
    """How long a step takes without the second drafter, and how much each node of it adds."""

    alone: CostCurve = field(default_factory=CostCurve)
    """Seconds of a step without the second, by the rows of its pass."""
    added: DecayedMean = field(default_factory=new_mean)
    """Time added by a node, in steps without the second."""
    steps_alone: int = 0
    steps_with: int = 0

    @property
    def is_known(self) -> bool:
        """False until a step with the second's draft was measured."""
        return self.added.weight > 0

    @property
    def wants_alone(self) -> bool:
        """Whether the second should be left out of this step, to measure a step without it."""
        return self.steps_alone < ALONE_FIRST or self.steps_with >= ALONE_EVERY

    def record_alone(self, num_rows: int, seconds: float) -> None:
        """Learn from a step without the second."""
        self.alone.record(num_rows, seconds)
        self.steps_alone, self.steps_with = self.steps_alone + 1, 0

    def record_with(self, num_seqs: int, num_nodes: int, steps: float) -> None:
        """Learn from a step with `num_nodes` of the second that took as long as `steps` steps without it."""
        added = max(0.0, steps - 1) * num_seqs / num_nodes
        if self.is_known:
            added = min(added, OUTLIER * max(self.added.value, 1.0))
        self.added.record(added)
        self.steps_with += 1

    def tokens_a_step(self, num_nodes: int, num_accepted: float) -> float:
        """Tokens of a sequence in the time of a step without the second: `(1 + accepted) / (1 + added nodes)`."""
        return (1 + num_accepted) / (1 + self.added.value * num_nodes)


@dataclass(slots=True)
class Gains:
    """Seconds that asking the second has gained or lost, by sequence, and what exploration may still lose."""

    budget_s: float = 0.0
    """The exploration budget: below 0 nothing is tried."""
    running: dict[int, float] = field(default_factory=dict)
    """Of the sequences that run and were asked about."""
    ended: DecayedMean = field(default_factory=new_mean)
    """Of a sequence from its first question, which reads its prompt, to its end."""

    def are_expected(self, seq_id: int) -> bool:
        """Whether to ask about a sequence: its prompt has been read, or reading those of others was worth it."""
        return seq_id in self.running or self.ended.value > 0

    def earn(self, seconds: float) -> None:
        """A step without the second: a share of its time may be spent on exploration."""
        self.budget_s = min(self.budget_s + EXPLORATION_SHARE * seconds, seconds)

    def record(self, asked: Collection[int], seconds: float) -> None:
        """A step with the second gained (or lost) so much time, shared evenly by these sequences."""
        for seq_id in asked:
            self.running[seq_id] = self.running.get(seq_id, 0.0) + seconds / len(asked)
        self.budget_s = min(self.budget_s + seconds, max(self.budget_s, 0.0))

    def end(self, seq_id: int) -> None:
        """A sequence ended."""
        if seq_id in self.running:
            self.ended.record(self.running.pop(seq_id))
