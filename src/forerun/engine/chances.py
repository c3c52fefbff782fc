"""The chance of every node of a draft: what its drafter says of it, corrected by how often such nodes were right.

Nodes of one kind are counted together: those of about the same confidence, or, where the drafter states none, those
of one index. A kind begins with what was stated, an even chance without confidence. Whether a text is easy or hard
to guess shifts all kinds alike: each sequence has a bias on the log-odds, found by Newton's method for logistic
regression with one unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.core.types import Draft

STATED_CASES = 4.0
"""Nodes of a kind that weigh as much as what was stated of them."""
MEMORY = 0.98
"""What a node counts for after the next one of its kind, or of its sequence."""
FIRST_PRECISION = 4.0
"""1 / variance of the biases of sequences: how closely they resemble each other."""


@dataclass(slots=True)
class Mean:
    """A decayed mean: each case counts `memory` times what the next one does."""

    cases: float = 0.0
    total: float = 0.0

    def record(self, value: float, memory: float) -> None:
        """Count a case."""
        self.cases = self.cases * memory + 1
        self.total = self.total * memory + value

    def given(self, prior: float, cases: float) -> float:
        """What to expect, with so many cases of `prior`."""
        return (self.total + cases * prior) / (self.cases + cases)


@dataclass(slots=True)
class Bias:
    """How much better a sequence is guessed than others, on the log-odds."""

    value: float = 0.0
    precision: float = FIRST_PRECISION

    def learn(self, chance: float, is_hit: bool) -> None:
        """A Newton step."""
        self.precision = max(FIRST_PRECISION, MEMORY * self.precision + chance * (1 - chance))
        self.value += (is_hit - chance) / self.precision


class Chances:
    """P(node accepted, all above it accepted), learned from every draft, verified or not."""

    def __init__(self, nodes: Sequence[tuple[float, float]] = ()) -> None:
        """`nodes` are of an earlier run, of chains: how often node i was drafted, and accepted then."""
        self._seen: dict[tuple[str, int], Mean] = {}  # by kind
        above = 1.0
        for i, (_, accepted) in enumerate(nodes):
            share = min(accepted / above, 1.0) if above else 0.0
            self._seen["index", i] = Mean(4 * STATED_CASES, 4 * STATED_CASES * share)
            above = accepted

    def chance(self, draft: Draft, node: int, bias: float) -> float:
        """Of a node to be accepted once its parent is, in a sequence of that bias."""
        stated = 0.5 if draft.confidence is None else _inside(draft.confidence[node])
        seen = self._seen.get(_kind(draft, node), Mean())
        chance = _inside(seen.given(stated, STATED_CASES))
        return 1 / (1 + (1 - chance) / chance * math.exp(-bias))

    def reach(self, draft: Draft, bias: float) -> Iterator[float]:
        """Of every node to be accepted, with all that is above it."""
        found: list[float] = []
        for node, parent in enumerate(draft.parents):
            above = found[parent] if parent >= 0 else 1.0
            found.append(above * self.chance(draft, node, bias))
            yield found[-1]

    def learn(self, draft: Draft, tokens: Sequence[int], bias: Bias) -> None:
        """Compare a draft, cut or not, with the tokens that came."""
        for node, is_hit in draft.matches(tokens):
            bias.learn(self.chance(draft, node, bias.value), is_hit)
            self._seen.setdefault(_kind(draft, node), Mean()).record(is_hit, MEMORY)


def _inside(chance: float) -> float:
    """Keeps the odds finite."""
    return min(max(chance, 0.005), 0.995)


def _kind(draft: Draft, node: int) -> tuple[str, int]:
    """Levels of confidence are as wide as a factor of two in the odds."""
    if draft.confidence is None:
        return "index", node
    stated = _inside(draft.confidence[node])
    return "level", round(math.log2(stated / (1 - stated)))
