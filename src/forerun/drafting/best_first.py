"""Trees of guesses, best first: what a draft of networks is asked with, and what comes back.

`csrc/drafters/growth.h` says how they grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.core.types import EMPTY_DRAFT, Draft

if TYPE_CHECKING:
    pass

MAX_STEPS = 16
"""Steps of a draft."""

GuessTree = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Tokens, parents, and the probability of each node once its parent is right; best first."""


def drafts_of(trees: Sequence[GuessTree]) -> list[Draft]:
    """Make drafts, with their probabilities as confidence."""
    return [
        Draft(tokens, parents, confidence=probabilities) if tokens else EMPTY_DRAFT
        for tokens, parents, probabilities in trees
    ]
