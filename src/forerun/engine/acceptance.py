"""The chance of every node of a draft: what its drafter says of it, corrected by how often such nodes were right.

Nodes of one kind are counted together: those of about the same confidence, or, where the drafter states none, those
of one index. A kind begins with what was stated, an even chance without confidence. Whether a text is easy or hard
to guess shifts all kinds alike: each sequence has a bias on the log-odds, found by Newton's method for logistic
regression with one unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.means import CASES, MEMORY, DecayedMean
from forerun.core.types import Draft

FIRST_PRECISION = 4.0
"""1 / variance of the biases of sequences: how closely they resemble each other."""
_HALVES = [(i + 0.5) / 200 for i in range(200)]
_LEVELS = tuple(8 + round(math.log2(p / (1 - p))) for p in (*_HALVES, _HALVES[-1]))
"""Level of a stated confidence, in steps of half a percent; a level is as wide as a factor of two in the odds."""


@dataclass(slots=True)
class Bias:
    """How much better a sequence is guessed than others, on the log-odds."""

    value: float = 0.0
    precision: float = FIRST_PRECISION

    def learn(self, chance: float, is_hit: bool) -> None:
        """Take one Newton step towards the log-odds that explain what was accepted."""
        self.precision = max(FIRST_PRECISION, MEMORY * self.precision + chance * (1 - chance))
        self.value += (is_hit - chance) / self.precision


class AcceptanceModel:
    """P(node accepted, all above it accepted), learned from every draft of one drafter, verified or not."""

    def __init__(self) -> None:
        self._levels = [DecayedMean(MEMORY) for _ in range(max(_LEVELS) + 1)]
        self._indexes: list[DecayedMean] = []  # of nodes without confidence

    def of(self, draft: Draft, bias: Bias) -> list[float]:
        """Return every node's chance to be accepted if its parent is, in a sequence of that bias."""
        odds, found = math.exp(-bias.value), []
        stated = draft.confidence or (0.5,) * len(draft)
        for said, seen in zip(stated, self._kinds(draft), strict=True):
            p = seen.given(said, CASES)
            found.append(p / (p + (1 - p) * odds))
        return found

    def learn(
        self, draft: Draft, chances: Sequence[float], tokens: Sequence[int], bias: Bias
    ) -> None:
        """Compare a draft, cut or not, with the tokens that came; `chances` is what was expected of it."""
        kinds = self._kinds(draft)
        for node, is_hit in draft.matches(tokens):
            bias.learn(chances[node], is_hit)
            kinds[node].record(is_hit)

    def _kinds(self, draft: Draft) -> Sequence[DecayedMean]:
        """Return the mean that each node is counted in."""
        if draft.confidence is None:
            missing = len(draft) - len(self._indexes)
            self._indexes += [DecayedMean(MEMORY) for _ in range(missing)]
            return self._indexes[: len(draft)]
        levels = self._levels
        return [levels[_LEVELS[int(200 * said)]] for said in draft.confidence]
