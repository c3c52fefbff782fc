"""The KV cache: what the engine and the drafters need, and what the torch reference model needs besides.

A closed slot keeps its rows until it is taken, so a chat's next turn, or a prompt with the same
beginning, is not computed twice. The row law makes reuse exact: a row is the same whoever computed
it. Rewinding is a call, not a trick: rejected rows are simply not kept.

n rows, G kv heads, S context, E head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from forerun.core.errors import CapacityError


class KVCache(ABC):
    """Keys and values of `num_slots` sequences of at most `max_len` rows, one a token.

    Each slot has a committed length; a model writes scratch rows above it (row r of a segment at
    `length + r`), and `keep` commits the accepted ones. Rows that are not kept are overwritten by
    the next pass. How rows are stored is the subclass's affair.
    """

    def __init__(self, num_slots: int, max_len: int) -> None:
        self.num_slots = num_slots
        self.max_len = max_len
        self._lengths = [0] * num_slots
        self._tokens: list[list[int]] = [[] for _ in range(num_slots)]
        """What the slots' rows are computed from: the first tokens of these, one a row."""
        self._free = list(range(num_slots))
        """Least recently closed first."""

    def open(self, tokens: Sequence[int], *, reuse: bool = True) -> tuple[int, int] | None:
        """A slot for a sequence of these tokens, and how many rows of theirs it holds already.

        With `reuse` those are the rows of the longest prefix that any slot holds, less than all
        tokens: one is left to compute. None if no slot is free.
        """
        if not self._free:
            return None
        source, length = self._longest_prefix(tokens) if reuse else (-1, 0)
        slot = source if length and source in self._free else self._free[0]
        self._free.remove(slot)
        if length and slot != source:
            self._copy(source, slot, length)
        self._lengths[slot], self._tokens[slot] = length, list(tokens)
        return slot, length

    def close(self, slot: int, tokens: Sequence[int]) -> None:
        """Free a slot whose rows were computed from `tokens`; they can be found until it is taken."""
        if slot in self._free:
            raise ValueError(f"slot {slot} is closed already")
        self._tokens[slot] = list(tokens[: self._lengths[slot]])
        self._free.append(slot)

    def reserve(self, slot: int, rows: int) -> bool:
        """Whether so many rows fit above the committed ones; if so, they may be written."""
        return self._lengths[slot] + rows <= self.max_len

    def length(self, slot: int) -> int:
        """Committed rows of a slot."""
        return self._lengths[slot]

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Commit scratch rows `path` (ascending, counted from the committed length) in order.

        The other scratch rows are forgotten. Raises CapacityError for rows that do not exist.
        """
        base = self._lengths[slot]
        if any(b <= a for a, b in pairwise((-1, *path))):
            raise ValueError(f"a path must ascend from 0, got {list(path)}")
        if path and base + path[-1] >= self.max_len:
            raise CapacityError(
                f"cache row {base + path[-1]} of slot {slot} does not exist: "
                f"it has {self.max_len} rows"
            )
        in_place = next((i for i, row in enumerate(path) if row != i), len(path))
        if in_place < len(path):
            self._move(slot, [base + row for row in path[in_place:]], base + in_place)
        self._lengths[slot] = base + len(path)

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed rows from `length` on."""
        if not 0 <= length <= self._lengths[slot]:
            raise ValueError(f"cannot cut slot {slot} of {self._lengths[slot]} rows to {length}")
        self._lengths[slot] = length

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes allocated."""

    @abstractmethod
    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        """Make rows start, start + 1, ... of a slot what `rows`, ascending and no lower, are."""

    @abstractmethod
    def _copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` rows of one slot those of another."""

    def _longest_prefix(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The first slot whose rows share the most tokens with these but for the last, and how many."""
        common = [
            _common_prefix(held[:length], tokens[:-1])
            for held, length in zip(self._tokens, self._lengths, strict=True)
        ]
        best = max(range(self.num_slots), key=common.__getitem__)
        return best, common[best]


class RowCache(KVCache):
    """A cache whose rows torch reads and writes."""

    @abstractmethod
    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer; k and v are (n, G, E) fp32."""

    @abstractmethod
    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's rows 0 to `stop`, each (G, stop, E) fp32, views where possible."""


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
