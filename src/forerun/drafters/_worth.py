"""What a part of a chain is worth: the tokens its drafts bring, and the time they take.

Nothing here reads a clock: `_chain` does, and tests give it one of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from forerun.core.costs import CostCurve
from forerun.core.types import Draft

MEMORY = 0.95
"""What a case counts for after one more."""
PRIOR = 0.5
"""Share of a draft that is expected to be accepted before any was, and of a node's cases."""
OUTLIER = 2.0
"""A price counts as at most so many times what was known: another prompt was read in that step."""
TRIAL_SHARE = 0.01
"""Share of the time that asking may cost where it is not expected to pay."""
ALONE_FIRST = 16
"""Steps without the second before it is tried, so that nobody takes what it costs for the first's doing."""
ALONE_EVERY = 64
"""Steps with it after which one without is measured anew."""


@dataclass(slots=True)
class Mean:
    """A decayed mean."""

    memory: float = MEMORY
    weight: float = 0.0
    total: float = 0.0

    def record(self, value: float) -> None:
        """Count a value."""
        self.weight = self.weight * self.memory + 1
        self.total = self.total * self.memory + value

    @property
    def value(self) -> float:
        """The mean; 0 before the first value."""
        return self.total / self.weight if self.weight else 0.0


@dataclass(slots=True)
class Expectation:
    """Accepted tokens of drafts by their size."""

    of_size: dict[int, Mean] = field(default_factory=dict)

    def record(self, num_nodes: int, num_accepted: int) -> None:
        """Learn what became of one draft."""
        self.of_size.setdefault(num_nodes, Mean()).record(num_accepted)

    def of(self, num_nodes: int) -> float:
        """Tokens expected of a draft of that size."""
        return given(self.of_size.get(num_nodes, Mean()), PRIOR * num_nodes)


@dataclass(slots=True)
class Nodes:
    """How often node i of a draft came true once its parent had."""

    shares: list[Mean] = field(default_factory=list)
    parents: tuple[int, ...] = ()
    """Of the largest draft, the latest of several."""

    def record(self, draft: Draft, tokens: Sequence[int]) -> int:
        """Hold a draft, or what was left of it, against the tokens that came; how many of them it said."""
        self.shares += [Mean() for _ in range(len(draft) - len(self.shares))]
        if len(draft) >= len(self.parents):
            self.parents = draft.parents
        num_said = 0
        for i, is_hit in draft.judged(tokens):
            self.shares[i].record(is_hit)
            num_said += is_hit
        return num_said

    def confidence(self, num_nodes: int) -> tuple[float, ...]:
        """The chance of each node to come true once its parent has."""
        shares = [*self.shares, *[Mean()] * (num_nodes - len(self.shares))]
        return tuple(given(share, PRIOR) for share in shares[:num_nodes])

    def expected(self) -> list[float]:
        """Tokens expected of a draft's first 1, 2, ... nodes."""
        reach: list[float] = []
        for parent, chance in zip(self.parents, self.confidence(len(self.parents)), strict=True):
            reach.append(chance * (reach[parent] if parent >= 0 else 1.0))
        return [*accumulate(reach)]


def given(seen: Mean, prior: float) -> float:
    """The mean to expect after what was seen; what was believed before weighs as much as two cases."""
    return (seen.total + 2 * prior) / (seen.weight + 2)


@dataclass(slots=True)
class Price:
    """How much longer a step takes for each node the second drafts, in steps without it."""

    alone: CostCurve = field(default_factory=CostCurve)
    """Seconds of a step without the second by the rows of its pass."""
    extra: Mean = field(default_factory=Mean)
    steps_alone: int = 0
    steps_with: int = 0

    @property
    def is_known(self) -> bool:
        """False until a step with the second's draft was measured."""
        return self.extra.weight > 0

    @property
    def wants_alone(self) -> bool:
        """Whether the second should be left out for once, to know what a step takes without it."""
        return self.steps_alone < ALONE_FIRST or self.steps_with >= ALONE_EVERY

    def record_alone(self, num_rows: int, seconds: float) -> None:
        """Learn from a step without the second."""
        self.alone.record(num_rows, seconds)
        self.steps_alone, self.steps_with = self.steps_alone + 1, 0

    def record_with(self, num_seqs: int, num_nodes: int, steps: float) -> None:
        """Learn from a step with so many nodes of the second, which took the time of so many without it."""
        extra = max(0.0, steps - 1) * num_seqs / num_nodes
        if self.is_known:
            extra = min(extra, OUTLIER * max(self.extra.value, 1.0))
        self.extra.record(extra)
        self.steps_with += 1

    def rate(self, num_nodes: int, num_accepted: float) -> float:
        """Tokens in the time of a step without the second, for a sequence with such a draft of it."""
        return (1 + num_accepted) / (1 + self.extra.value * num_nodes)


@dataclass(slots=True)
class Ledger:
    """Whether asking about a sequence at all paid for reading its prompt, and what trials may still lose.

    All in seconds; a sequence's own account is open until it ends.
    """

    purse: float = 0.0
    accounts: dict[int, float] = field(default_factory=dict)
    of_sequence: Mean = field(default_factory=Mean)

    def pays(self, seq_id: int) -> bool:
        """Whether a sequence should be asked about by what is known: its prompt is read, or others' was worth it."""
        return seq_id in self.accounts or self.of_sequence.value > 0

    def earn(self, seconds: float) -> None:
        """A step without the second: a share of it may go into trials."""
        self.purse = min(self.purse + TRIAL_SHARE * seconds, seconds)

    def book(self, asked: Collection[int], gained: float) -> None:
        """A step with the second: what was gained, or lost, about these sequences."""
        for seq_id in asked:
            self.accounts[seq_id] = self.accounts.get(seq_id, 0.0) + gained / len(asked)
        self.purse = min(self.purse + gained, max(self.purse, 0.0))

    def close(self, seq_id: int) -> None:
        """A sequence ended."""
        if seq_id in self.accounts:
            self.of_sequence.record(self.accounts.pop(seq_id))
