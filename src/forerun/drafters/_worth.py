"""What a part of a chain is worth: the tokens its drafts bring, and the time they take.

Nothing here reads a clock: `_chain` does, and tests give it one of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY = 0.95
"""What a case counts for after one more."""
PRIOR = 0.5
"""Share of a draft that is expected to be accepted before any was; weighs as much as two drafts."""
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
        return expected(self.of_size.get(num_nodes, Mean()), num_nodes)


def expected(seen: Mean, num_nodes: int) -> float:
    """Tokens expected of a draft, where `seen` is what drafts like it brought."""
    return (seen.total + 2 * PRIOR * num_nodes) / (seen.weight + 2)


@dataclass(slots=True)
class Price:
    """How much longer a step takes with the second's draft, in steps without it, for each sequence that has one."""

    alone: dict[int, Mean] = field(default_factory=dict)
    """Seconds of a step without the second, by the number of sequences in it."""
    accepted_alone: Mean = field(default_factory=Mean)
    """Tokens of a sequence's draft that were accepted in such a step."""
    extra: Mean = field(default_factory=Mean)
    steps_alone: int = 0
    steps_with: int = 0
    purse: float = 0.0
    """Seconds that asking may still lose: it earns a share of all steps, and what was gained."""

    @property
    def is_known(self) -> bool:
        """False until a step with the second's draft was measured."""
        return self.extra.weight > 0

    def wants_alone(self, num_seqs: int) -> bool:
        """Whether the second should be left out for once, to know what a step takes without it."""
        is_new = num_seqs not in self.alone or self.steps_alone < ALONE_FIRST
        return is_new or self.steps_with >= ALONE_EVERY

    def record_alone(self, num_seqs: int, seconds: float, num_accepted: int) -> None:
        """Learn from a step without the second."""
        mean = self.alone.setdefault(num_seqs, Mean())
        if mean.weight > 1:
            seconds = min(seconds, OUTLIER * mean.value)
        mean.record(seconds)
        self.accepted_alone.record(num_accepted / num_seqs)
        self.steps_alone, self.steps_with = self.steps_alone + 1, 0
        self.purse = min(self.purse + TRIAL_SHARE * seconds, mean.value)

    def record_with(
        self, num_seqs: int, num_asked: int, seconds: float, num_accepted: int, *, is_usual: bool
    ) -> None:
        """Learn from a step with the second's drafts for some of its sequences.

        What it took counts as a price only if it was usual; the purse pays for all of it.
        """
        self.steps_with += 1
        if num_seqs not in self.alone:
            return
        alone_s = self.alone[num_seqs].value
        gained_s = alone_s * (1 + num_accepted / num_seqs) / (1 + self.accepted_alone.value)
        self.purse = min(self.purse + gained_s - seconds, alone_s)
        if is_usual:
            extra = max(0.0, seconds / alone_s - 1) * num_seqs / num_asked
            if self.is_known:
                extra = min(extra, OUTLIER * max(self.extra.value, 1.0))
            self.extra.record(extra)
