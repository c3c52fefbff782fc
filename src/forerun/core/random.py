"""Random numbers by position, not by order of drawing.

A number is a function of (seed, stream, position, index): a sequence's draws depend neither on the other
sequences of its batch nor on how many tokens were drafted. With point-mass drafts a seeded result is
therefore the same for every drafter.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b


class Stream(IntEnum):
    """What a draw is for; the streams of one seed are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2


def uniform(seed: int, stream: Stream, position: int, index: int = 0) -> float:
    """Return a number in [0, 1) with 53 random bits, from a hash of the four.

    A hash, because a counter-based generator of NumPy asks the operating system for entropy each time
    it is made, which takes longer than everything else about a draw.
    """
    place = struct.pack("<QQQQ", seed, stream, position, index)
    bits = int.from_bytes(blake2b(place, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53
