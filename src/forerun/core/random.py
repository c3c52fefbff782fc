"""Random numbers that belong to a place, not to a moment.

A number is a function of (seed, stream, position, index): a sequence's draws depend neither on its batch-mates nor on how
many tokens were drafted. With point-mass drafts a seeded result is therefore the same for every drafter.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a draw is for; the streams of one seed are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2


def uniform(seed: int, stream: Stream, position: int, index: int = 0) -> float:
    """A number in [0, 1) with 53 random bits, from Philox keyed by the seed and stream, counted by position and index."""
    bits = np.random.Philox(key=(seed & 0xFFFFFFFFFFFFFFFF) | (int(stream) << 64), counter=position | (index << 64))
    return float(int(bits.random_raw()) >> 11) * 2.0**-53
