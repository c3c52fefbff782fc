"""Which tokens come next: counts by the last 1 to `order` tokens, of rows the target has computed.

Two kinds of `csrc/drafters/token_table.cpp` answer the same question. `LiveTable` learns while requests run, in a fixed
number of bytes: what was learned longest ago is forgotten first. `FileTable` is read from a file that `forerun train
table` wrote. A context is known by a 64-bit hash of its tokens, so a table never stores a text.

Here is how a file's are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.core.types import TopK

NUM_LIVE = 6
"""Tokens a live table keeps for a context."""
PRIOR = 6.0
"""Weight of the shorter contexts' prediction, in occurrences of the context."""
PER_BUCKET = 4
"""Contexts of a file's bucket, on average: a bucket is read from its start."""

_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15

VerifiedTree = tuple[Sequence[int], Sequence[int], Sequence[int], TopK]
"""The last tokens before a draft, its tokens and parents, and the target's distribution at root and nodes."""
Hash = TypeVar("Hash", int, NDArray[Any])
"""One hash, or an array of them as uint64."""


def grow_hash(hash: Hash, token: Hash) -> Hash:
    """Hash a context with one more token before it; 0 is the hash of no tokens."""
    hash = (hash ^ (token + 1)) * _MULTIPLIER & _MASK
    hash ^= hash >> 29
    return hash


def place_of(hash: Hash, num_places: int) -> Hash:
    """Choose which of so many sets or buckets a context belongs to: by the high 32 bits of its hash."""
    return (hash >> 32) * num_places >> 32


def pack(
    hashes: NDArray[np.uint64],
    counts: NDArray[np.int64],
    tokens: NDArray[np.int64],
    shares: NDArray[np.int64],
    token_nbytes: int,
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Pack offsets and data of a `FileTable` of C contexts; tokens and shares (C, k), a token -1 is none."""
    num_buckets = max(1, len(hashes) // PER_BUCKET)
    bucket = place_of(hashes, num_buckets).astype(np.int64)
    order = np.lexsort((hashes, bucket))
    hashes, counts, bucket = hashes[order], counts[order], bucket[order]
    tokens, shares = tokens[order], shares[order]
    num = (tokens >= 0).sum(1)
    sizes = 4 + num * (token_nbytes + 1)
    at = np.cumsum(sizes) - sizes
    data = np.zeros(int(sizes.sum()), np.uint8)
    data[at], data[at + 1] = hashes & np.uint64(255), hashes >> np.uint64(8) & np.uint64(255)
    exponent = np.minimum(np.log2(counts).astype(np.int64), 15)
    data[at + 2] = exponent << 4 | np.minimum((counts << 4) >> exponent, 31) - 16
    data[at + 3] = num
    offset = at + 4
    for rank in range(tokens.shape[1]):
        has = tokens[:, rank] >= 0
        for byte in range(token_nbytes):
            data[offset[has] + byte] = tokens[has, rank] >> (8 * byte) & 255
        data[offset[has] + token_nbytes] = shares[has, rank]
        offset = offset + has * (token_nbytes + 1)
    offsets = np.zeros(num_buckets + 1, np.uint32)
    np.add.at(offsets, bucket + 1, sizes.astype(np.uint32))
    return np.cumsum(offsets, dtype=np.uint32), data


@dataclass(frozen=True, slots=True)
class PackedTable:
    """The bytes of a `FileTable`, and what they were counted on.

    Buckets of entries; `offsets[i]` is where bucket i begins. A context's bucket is its hash's high 32 bits times the
    number of buckets over 2^32. An entry is the hash's low 16 bits, the count as (16 + low 4 bits) * 2^(high 4 bits)
    / 16, the number of tokens, and for each its id (2 or 3 bytes) and its share of the count in 255ths.
    """

    offsets: NDArray[np.uint32]
    data: NDArray[np.uint8]
    order: int
    token_nbytes: int
    num_tokens: int
    num_contexts: int

    @property
    def nbytes(self) -> int:
        """Bytes of the offsets and the entries."""
        return self.offsets.nbytes + self.data.nbytes
