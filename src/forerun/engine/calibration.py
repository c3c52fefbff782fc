"""Calibrating confidences: the chance that a node is accepted, by what its drafter says and how often that was right.

Confidences are sorted into levels, and for each the share of nodes that were right is counted, beginning with the
confidence itself. Whether a text is easy or hard to guess shifts all levels alike: each sequence has a bias on the
log-odds, learned as in logistic regression.
"""

from __future__ import annotations

import math

from forerun.core.types import Draft
from forerun.engine.acceptance import Frequency

PRIOR_CASES = 4.0
"""Cases of a level that weigh as much as the confidence itself."""
MEMORY = 0.995
BIAS_RATE = 0.1
BIAS_MEMORY = 0.99


class ConfidenceCalibrator:
    """The chance of a node to be accepted once its parent is, by its confidence."""

    def __init__(self) -> None:
        self._levels: dict[int, Frequency] = {}

    def chance(self, confidence: float, bias: float = 0.0) -> float:
        """The chance, in a sequence with that bias."""
        stated = _inside(confidence)
        seen = self._levels.get(_level(stated), Frequency())
        chance = (seen.hits + PRIOR_CASES * stated) / (seen.cases + PRIOR_CASES)
        return 1 / (1 + (1 - chance) / chance * math.exp(-bias))

    def reach(self, draft: Draft, bias: float) -> list[float]:
        """The chance of every node of a draft to be accepted, with all that is above it."""
        found: list[float] = []
        for parent, confidence in zip(draft.parents, draft.confidence or (), strict=True):
            above = found[parent] if parent >= 0 else 1.0
            found.append(above * self.chance(confidence, bias))
        return found

    def judge(self, draft: Draft, tokens: tuple[int, ...], bias: float) -> float:
        """Learn from a draft and the tokens that came; returns the sequence's new bias.

        The draft may be the one that was never verified: its nodes are compared with what came.
        """
        confidence = draft.confidence or ()
        for i, is_hit in draft.matches(tokens):
            miss = is_hit - self.chance(confidence[i], bias)
            level = self._levels.setdefault(_level(_inside(confidence[i])), Frequency())
            level.record(is_hit, MEMORY)
            bias = BIAS_MEMORY * bias + BIAS_RATE * miss
        return bias


def _inside(confidence: float) -> float:
    """Keeps the odds finite."""
    return min(max(confidence, 0.01), 0.99)


def _level(confidence: float) -> int:
    """Levels are as wide as a factor of two in the odds."""
    return round(math.log2(confidence / (1 - confidence)))
