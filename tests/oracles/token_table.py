"""Tables of the tokens that came next: the oracles of `csrc/drafters/token_table.cpp`.

`forerun.drafters.base.ngram.token_table` says what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.drafters.base.ngram.token_table import NUM_LIVE, VerifiedTree, grow_hash, place_of

ENTRY_NBYTES = 64
"""A context of a live table: its hash, its age, its count and `NUM_LIVE` tokens with theirs. One cache line."""
ENTRY = np.dtype(
    [
        ("hash", "<u8"),
        ("age", "<u4"),
        ("total", "<f4"),
        ("tokens", "<i4", NUM_LIVE),
        ("counts", "<f4", NUM_LIVE),
    ]
)
"""An entry as bytes; a token -1 is none."""
WAYS = 4
SET_NBYTES = WAYS * ENTRY_NBYTES + 4
"""Contexts that compete for the same place: the one learned longest ago gives way."""
FADE = np.float32(0.7)
"""Decay of a context's earlier counts each time it is seen."""

Counts = tuple[float, list[tuple[int, float]]]
"""Times a context was seen, and the tokens that followed, each with its share of those times."""


def context_hashes(tokens: Sequence[int], order: int) -> Iterator[int]:
    """Hash the last 1, 2, ... `order` tokens; fewer if there are fewer tokens."""
    hashed = 0
    for token in reversed(tokens[-order:]):
        hashed = grow_hash(hashed, token)
        yield hashed


@dataclass(slots=True)
class _Entry:
    hash: int
    age: int
    total: np.float32 = field(default_factory=np.float32)
    tokens: list[int] = field(default_factory=list)
    counts: list[np.float32] = field(default_factory=list)

    def add(self, tokens: Sequence[int], counts: Sequence[float]) -> None:
        """Count one more occurrence: all counts fade, the new ones are added; the rarest tokens give way."""
        self.total = self.total * FADE + np.float32(1)
        self.counts = [count * FADE for count in self.counts]
        for token, more in zip(tokens, counts, strict=True):
            count = np.float32(more)
            if token in self.tokens:
                index = self.tokens.index(token)
                self.counts[index] += count
            elif len(self.tokens) < NUM_LIVE:
                self.tokens.append(token)
                self.counts.append(count)
            else:
                index = self.counts.index(min(self.counts))
                if self.counts[index] < count:
                    self.tokens[index], self.counts[index] = token, count


class LiveTable:
    """Learns the tokens after a context; `nbytes` is its size at most, `age` rises with every context."""

    def __init__(self, order: int, nbytes: int) -> None:
        self.order = order
        self.age = 0
        self._num_sets = max(1, nbytes // SET_NBYTES)
        self._sets: dict[int, list[_Entry]] = {}

    def learn(
        self, tokens: Sequence[int], likeliest: Sequence[int], probs: Sequence[float]
    ) -> None:
        """Learn the target's likeliest tokens after `tokens`, with their probabilities."""
        for hash in context_hashes(tokens, self.order):
            self._entry(hash).add(likeliest, probs)

    def learn_trees(self, trees: Sequence[VerifiedTree]) -> None:
        """Learn from the rows of verified trees: row 0 follows the tail, row 1 + i node i."""
        for tail, tokens, parents, top in trees:
            tails = [[*tail]]
            for token, parent in zip(tokens, parents, strict=True):
                tails.append([*tails[1 + parent], token])
            rows = zip(tails, top.ids.tolist(), top.probs().tolist(), strict=True)
            for each, likeliest, probs in rows:
                self.learn(each, likeliest, probs)

    def find(self, hash: int) -> Counts | None:
        """Look up the counts after a context; None if it is not known."""
        for entry in self._sets.get(place_of(hash, self._num_sets), ()):
            if entry.hash == hash:
                counts = map(float, entry.counts)
                return float(entry.total), [*zip(entry.tokens, counts, strict=True)]
        return None

    def entries(self) -> bytes:
        """Dump all contexts as `ENTRY`s; those learned longest ago first."""
        known = [e for entries in self._sets.values() for e in entries]
        rows = np.zeros(len(known), ENTRY)
        rows["tokens"] = -1
        for row, entry in zip(rows, sorted(known, key=lambda e: e.age), strict=True):
            row["hash"], row["age"], row["total"] = entry.hash, entry.age, entry.total
            row["tokens"][: len(entry.tokens)] = entry.tokens
            row["counts"][: len(entry.counts)] = entry.counts
        return rows.tobytes()

    def __sizeof__(self) -> int:
        return self._num_sets * SET_NBYTES

    def _entry(self, hash: int) -> _Entry:
        self.age += 1
        entries = self._sets.setdefault(place_of(hash, self._num_sets), [])
        known = next((entry for entry in entries if entry.hash == hash), None)
        if known is None:
            known = _Entry(hash, self.age)
            if len(entries) < WAYS:
                entries.append(known)
            else:
                entries[min(range(WAYS), key=lambda i: entries[i].age)] = known
        known.age = self.age
        return known


class FileTable:
    """Counts as they lie in a file (`PackedTable`), never copied."""

    def __init__(
        self, offsets: NDArray[np.uint32], data: NDArray[np.uint8], token_nbytes: int
    ) -> None:
        if token_nbytes not in (2, 3):
            raise ValueError("token_nbytes must be 2 or 3")
        if len(offsets) < 2 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("the offsets do not fit the data")
        self._offsets, self._data, self._token_nbytes = offsets, data, token_nbytes

    def find(self, hash: int) -> Counts | None:
        """Look up the counts after a context; None if it is not known."""
        bucket = place_of(hash, len(self._offsets) - 1)
        at, stop = int(self._offsets[bucket]), int(self._offsets[bucket + 1])
        data, width = self._data, self._token_nbytes + 1
        while stop - at >= 4:
            mark, size, num = (
                int(data[at]) | int(data[at + 1]) << 8,
                int(data[at + 2]),
                int(data[at + 3]),
            )
            at += 4
            if stop - at < num * width:
                return None
            if mark == hash & 0xFFFF:
                total = unpack_count(size)
                rows = [data[at + i * width : at + (i + 1) * width].tobytes() for i in range(num)]
                return total, [
                    (int.from_bytes(row[:-1], "little"), total * row[-1] / 255) for row in rows
                ]
            at += num * width
        return None

    def __sizeof__(self) -> int:
        return self._offsets.nbytes + self._data.nbytes


def unpack_count(packed: int) -> float:
    """Unpack a count from its byte.

    >>> [unpack_count(byte) for byte in (0, 16, 40, 255)]
    [1.0, 2.0, 6.0, 63488.0]
    """
    return ((16 + (packed & 15)) << (packed >> 4)) / 16
