"""What it was worth to ask a drafter: what its first, second, ... node added, in tokens net of their rows' time.

Kept for all sequences together and for each of them, which begins with what all say. What is worth asking depends
on what is there already: a draft model adds little where a look-up is sure of the next words.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.means import CASES, MEMORY, DecayedMean

HOPE = 0.5
"""What the first node is hoped to add before any draft; each further one half as much."""


class NodeValue:
    """Of the nodes of one drafter's drafts, in every sequence."""

    def __init__(self) -> None:
        self._all = [DecayedMean(MEMORY)]

    @property
    def num_nodes(self) -> int:
        """As many nodes as the largest draft had; one before the first."""
        return len(self._all)

    def expected(self, own: Sequence[DecayedMean]) -> list[float]:
        """Of each node in a sequence; `own` is what its drafts showed."""
        values = [mean.given(HOPE / 2**i, CASES) for i, mean in enumerate(self._all)]
        values[: len(own)] = [mean.given(x, CASES) for mean, x in zip(own, values, strict=False)]
        return values

    def learn(self, own: list[DecayedMean], values: Sequence[float]) -> None:
        """A draft of a sequence, by its nodes."""
        for means in (own, self._all):
            means += [DecayedMean(MEMORY) for _ in range(len(values) - len(means))]
            for mean, value in zip(means, values, strict=False):
                mean.record(value)
