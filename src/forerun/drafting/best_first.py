"""Trees of guesses, best first: what a network's draft is asked with, and what comes back.

`csrc/drafters/growth.h` says how they grow.

D width of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.arrays import Floats
from forerun.core.types import EMPTY_DRAFT, Draft

if TYPE_CHECKING:
    from forerun._native import TextNGramModel, TreeNoise

MAX_STEPS = 16
"""Steps of a draft."""

GuessTree = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Tokens, parents, and the probability of each node once its parent is right; best first."""


@dataclass(slots=True)
class DraftRequest:
    """One draft of several sequences, as a network takes it; every list has an entry a sequence."""

    tokens: Sequence[int]
    """The last token of each, below which its tree grows."""
    num_nodes: Sequence[int]
    """Nodes of each tree at most."""
    num_steps: int
    """Steps of the network at most."""
    min_chance: float
    """Probability of a node's path at least."""
    min_doubt: float = 0.0
    """Where an n-gram model guesses too: probability that it is wrong, from which the network steps."""
    ngrams: TextNGramModel | None = None
    """The n-gram model of the texts; None: the network guesses alone."""
    noises: Sequence[TreeNoise | None] = ()
    """The sampler's noise of each sequence, None for a greedy one; none: all are greedy."""
    rows: Sequence[int] | None = None
    """Of `states`, or slots of the network's own cache; None: 0, 1, ..."""
    states: Floats | None = None
    """Rows (R, D) of a pass, as the target's head read them; they are not copied."""


def drafts_of(trees: Sequence[GuessTree]) -> list[Draft]:
    """Make drafts, with their probabilities as confidence."""
    return [
        Draft(tokens, parents, confidence=probabilities) if tokens else EMPTY_DRAFT
        for tokens, parents, probabilities in trees
    ]
