"""What it was worth to ask a drafter: what its first, second, ... node added, in tokens net of their rows' time.

Kept for all sequences together and for each of them, which begins with what all say. What is worth asking depends
on what is there already: a draft model adds little where a look-up is sure of the next words.
"""

from __future__ import annotations

from collections.abc import Sequence

MEMORY_OF_ONE = 0.95
MEMORY_OF_ALL = 0.98
"""What a draft counts for after the next in what the nodes of a sequence, and of all, are worth."""
CASES = 4.0
"""Drafts that the worth of all nodes weighs as much as, or what is hoped of them at first."""
HOPE = 0.5
"""Of the first node; of each further one half as much."""


class Means:
    """A decayed mean for each node."""

    __slots__ = ("cases", "totals")

    def __init__(self) -> None:
        self.cases: list[float] = []
        self.totals: list[float] = []

    def record(self, values: Sequence[float], memory: float) -> None:
        """Count a draft: what its first nodes were worth."""
        for known in (self.cases, self.totals):
            if len(values) > len(known):
                known += [0.0] * (len(values) - len(known))
        n = len(values)
        self.cases[:n] = [memory * cases + 1 for cases in self.cases[:n]]
        self.totals[:n] = [
            memory * total + x for total, x in zip(self.totals[:n], values, strict=True)
        ]

    def given(self, prior: Sequence[float]) -> list[float]:
        """Return what to expect of each node, with some cases of `prior`, which is at least as long."""
        found = [
            (total + CASES * before) / (cases + CASES)
            for cases, total, before in zip(self.cases, self.totals, prior, strict=False)
        ]
        found += prior[len(found) :]
        return found


class NodeValue:
    """Of the nodes of one drafter's drafts, in every sequence."""

    def __init__(self, known: Sequence[float] = ()) -> None:
        """`known` is what an earlier run saw."""
        self._all = Means()
        self._all.cases = [CASES] * len(known)
        self._all.totals = [CASES * value for value in known]
        self._hopes = [HOPE / 2**i for i in range(max(len(known), 1))]

    @property
    def num_nodes(self) -> int:
        """As many nodes as the largest draft had; one before the first."""
        return len(self._hopes)

    def expected(self, own: Means) -> list[float]:
        """Of each node in a sequence."""
        return own.given(self._all.given(self._hopes))

    def learn(self, own: Means, values: Sequence[float]) -> None:
        """A draft of a sequence, by its nodes."""
        while len(values) > len(self._hopes):
            self._hopes.append(self._hopes[-1] / 2)
        own.record(values, MEMORY_OF_ONE)
        self._all.record(values, MEMORY_OF_ALL)
