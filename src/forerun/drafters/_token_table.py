"""Which tokens come next: counts by the last 1 to `order` tokens, of rows the target has computed.

Two kinds answer the same question. `LiveTable` learns while requests run, in a fixed number of bytes: what was
learned longest ago is forgotten first. `FileTable` is read from a file that `forerun train table` wrote.
A context is known by a 64-bit hash of its tokens, so a table never stores a text.

The native extension has twins of both (csrc/token_table.cpp), which answer the same to the last bit. What is
here is their oracle, and all there is without a compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.kernels import native

if TYPE_CHECKING:
    from forerun import _native

ENTRY_NBYTES = 64
"""A context of a live table: its hash, its age, its count and `NUM_LIVE` tokens with theirs. One cache line."""
NUM_LIVE = 6
"""Tokens a live table keeps for a context."""
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
"""Contexts that compete for the same place: the one learned longest ago gives way."""
FADE = np.float32(0.7)
"""Weight of what was known of a context when it is learned anew."""

_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15

Counts = tuple[float, list[tuple[int, float]]]
"""Times a context was seen, and the tokens that followed, each with its share of those times."""


def context_hashes(tokens: Sequence[int], order: int) -> Iterator[int]:
    """Hashes of the last 1, 2, ... `order` tokens; fewer if there are fewer tokens."""
    found = 0
    for token in reversed(tokens[-order:]):
        found = (found ^ (token + 1)) * _MULTIPLIER & _MASK
        found ^= found >> 29
        yield found


class Table(Protocol):
    """What a tree of guesses asks."""

    def find(self, hash: int) -> Counts | None:
        """What is known of a context."""
        ...


@dataclass(slots=True)
class _Entry:
    hash: int
    age: int
    total: np.float32 = field(default_factory=np.float32)
    tokens: list[int] = field(default_factory=list)
    counts: list[np.float32] = field(default_factory=list)

    def add(self, tokens: Sequence[int], counts: Sequence[float]) -> None:
        """One more sight of the context: all counts fade, the new ones are added; the rarest tokens give way."""
        self.total = self.total * FADE + np.float32(1)
        self.counts = [count * FADE for count in self.counts]
        for token, more in zip(tokens, counts, strict=True):
            count = np.float32(more)
            if token in self.tokens:
                place = self.tokens.index(token)
                self.counts[place] += count
            elif len(self.tokens) < NUM_LIVE:
                self.tokens.append(token)
                self.counts.append(count)
            else:
                place = self.counts.index(min(self.counts))
                if self.counts[place] < count:
                    self.tokens[place], self.counts[place] = token, count


class LiveTable:
    """Learns the tokens after a context; `nbytes` is its size from the start, `age` rises with every context."""

    def __init__(self, order: int, nbytes: int) -> None:
        self.order = order
        self.age = 0
        self._num_sets = max(1, nbytes // (WAYS * ENTRY_NBYTES))
        self._sets: dict[int, list[_Entry]] = {}

    def learn(
        self, tokens: Sequence[int], likeliest: Sequence[int], probs: Sequence[float]
    ) -> None:
        """The target's likeliest tokens after `tokens`, with their probabilities."""
        for hash in context_hashes(tokens, self.order):
            self._entry(hash).add(likeliest, probs)

    def learn_tree(
        self,
        tail: Sequence[int],
        tokens: Sequence[int],
        parents: Sequence[int],
        ids: NDArray[np.int64],
        probs: NDArray[np.float32],
    ) -> None:
        """The rows of a verified tree: row 0 of `ids` and `probs` (1 + N, k) follows `tail`, row 1 + i node i."""
        tails = [[*tail]]
        for token, parent in zip(tokens, parents, strict=True):
            tails.append([*tails[1 + parent], token])
        for each, likeliest, chances in zip(tails, ids.tolist(), probs.tolist(), strict=True):
            self.learn(each, likeliest, chances)

    def find(self, hash: int) -> Counts | None:
        """What is known of a context."""
        for entry in self._sets.get(self._place(hash), ()):
            if entry.hash == hash:
                counts = map(float, entry.counts)
                return float(entry.total), [*zip(entry.tokens, counts, strict=True)]
        return None

    def entries(self, since: int = 0) -> bytes:
        """The contexts learned after an age, each once, as `ENTRY`s; those learned longest ago first."""
        found = [e for entries in self._sets.values() for e in entries if e.age > since]
        rows = np.zeros(len(found), ENTRY)
        rows["tokens"] = -1
        for row, entry in zip(rows, sorted(found, key=lambda e: e.age), strict=True):
            row["hash"], row["age"], row["total"] = entry.hash, entry.age, entry.total
            row["tokens"][: len(entry.tokens)] = entry.tokens
            row["counts"][: len(entry.counts)] = entry.counts
        return rows.tobytes()

    def absorb(self, entries: bytes) -> None:
        """Take over another table's `entries`, as if they were learned now. Raises ValueError for a part of one."""
        for row in np.frombuffer(entries, ENTRY):
            known = self._entry(int(row["hash"]))
            num = int((row["tokens"] != -1).sum())
            known.total = row["total"]
            known.tokens, known.counts = row["tokens"][:num].tolist(), [*row["counts"][:num]]

    def __sizeof__(self) -> int:
        return self._num_sets * WAYS * ENTRY_NBYTES

    def _place(self, hash: int) -> int:
        return (hash >> 32) * self._num_sets >> 32

    def _entry(self, hash: int) -> _Entry:
        self.age += 1
        entries = self._sets.setdefault(self._place(hash), [])
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
    """Counts as they lie in a file, never copied: buckets of entries, `offsets[i]` is where bucket i begins.

    A context's bucket is its hash's high 32 bits times the number of buckets over 2^32. An entry is the hash's low
    16 bits, the count as (16 + low 4 bits) * 2^(high 4 bits) / 16, the number of tokens, and for each its id (2 or 3
    bytes) and its share of the count in 255ths.
    """

    def __init__(
        self, offsets: NDArray[np.uint32], data: NDArray[np.uint8], token_nbytes: int
    ) -> None:
        if token_nbytes not in (2, 3):
            raise ValueError("token_nbytes must be 2 or 3")
        if len(offsets) < 2 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("the offsets do not fit the data")
        self._offsets, self._data, self._token_nbytes = offsets, data, token_nbytes

    def find(self, hash: int) -> Counts | None:
        """What is known of a context."""
        bucket = (hash >> 32) * (len(self._offsets) - 1) >> 32
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
    """A count out of its byte.

    >>> [unpack_count(byte) for byte in (0, 16, 40, 255)]
    [1.0, 2.0, 6.0, 63488.0]
    """
    return ((16 + (packed & 15)) << (packed >> 4)) / 16


AnyLiveTable: TypeAlias = "LiveTable | _native.LiveTable"
AnyFileTable: TypeAlias = "FileTable | _native.FileTable"


def new_live_table(order: int, nbytes: int) -> AnyLiveTable:
    """An empty table: the native one where it was built."""
    if not native.available():
        return LiveTable(order, nbytes)
    from forerun import _native

    return _native.LiveTable(order, nbytes)


def new_file_table(
    offsets: NDArray[np.uint32], data: NDArray[np.uint8], token_nbytes: int
) -> AnyFileTable:
    """A table of bytes that are kept: the native one where it was built. Raises ValueError if they do not fit."""
    if not native.available():
        return FileTable(offsets, data, token_nbytes)
    from forerun import _native

    return _native.FileTable(offsets, data, token_nbytes)
