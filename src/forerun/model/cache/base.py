"""The KV cache: what the engine and the drafters need, and what the torch reference model needs besides.

Rewinding is a call, not a trick: rejected rows are simply not kept.

n rows, G kv heads, S context, E head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from forerun.core.errors import CapacityError
from forerun.model.cache.blocks import BlockPool


class KVCache(ABC):
    """Keys and values of `num_slots` sequences of at most `max_len` rows, one a token.

    Each slot has a committed length; a model writes scratch rows above it (row r of a segment at
    `length + r`), and `keep` commits the accepted ones. Rows that are not kept are overwritten by
    the next pass. How rows are stored, and whether sequences share them, is the subclass's affair.
    `pool` counts the blocks of those that have blocks; it is empty for others.
    """

    is_limited: bool = False
    """Whether it has fewer or more blocks than its slots can fill."""

    def __init__(self, num_slots: int, max_len: int) -> None:
        self.pool = BlockPool(0)
        self.num_slots = num_slots
        self.max_len = max_len
        self._lengths = [0] * num_slots
        self._free_slots = list(range(num_slots))
        """Least recently closed first."""

    def open(
        self, tokens: Sequence[int], *, reuse: bool = True, spare: int = 0
    ) -> tuple[int, int] | None:
        """Return a slot for a sequence of these tokens, and how many rows of theirs it holds already.

        With `reuse` those may be rows that earlier sequences computed, less than all tokens: one is
        left to compute. None if no slot is free, or not the memory for the tokens' rows and `spare`
        blocks besides; a sequence that is alone always has it.
        """
        if not self._free_slots:
            return None
        return self._free_slots.pop(0), 0

    def close(self, slot: int, tokens: Sequence[int]) -> None:
        """Free a slot whose rows were computed from `tokens`; its rows may be found by them."""
        if slot in self._free_slots:
            raise ValueError(f"slot {slot} is closed already")
        self._lengths[slot] = 0
        self._free_slots.append(slot)

    def reserve(self, slot: int, rows: int) -> bool:
        """Return whether so many rows fit above the committed ones; if so, they may be written."""
        return self._lengths[slot] + rows <= self.max_len

    def lacking(self, slot: int, rows: int) -> int:
        """Return the blocks that `reserve` of so many rows would take from the pool."""
        return 0

    def room(self, slot: int, more: int = 0) -> int:
        """Return the rows above the committed ones that a slot's blocks have, with so many blocks more."""
        return self.max_len - self._lengths[slot]

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
        if path and not self.reserve(slot, path[-1] + 1):
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

    def usage(self) -> float:
        """Share of the memory that open slots hold."""
        return sum(self._lengths) / (self.num_slots * self.max_len)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block: keys and values of its rows of all layers."""
        return self.pool.block_nbytes

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the allocated blocks."""

    @abstractmethod
    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        """Make rows start, start + 1, ... of a slot what `rows`, ascending and no lower, are."""


class RowCache(KVCache):
    """A cache whose rows torch reads and writes."""

    @abstractmethod
    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer, which are reserved; k and v are (n, G, E) fp32."""

    @abstractmethod
    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of one layer's rows 0 to `stop`, each (G, stop, E) fp32, views where possible.

        `stop` may be beyond the rows that were written; what is there are finite numbers.
        """

    def query(self, query: Tensor) -> Tensor:
        """Round queries (..., E) as the keys are, if those are whole numbers."""
        return query
