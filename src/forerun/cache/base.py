"""What a KV cache promises. Rewinding is a call, not a trick: rejected rows are simply not kept.

L layers, G kv heads, S context, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class KVCache(Protocol):
    """Keys and values of `num_slots` sequences of at most `max_len` rows.

    Each slot has a committed length; a model writes scratch rows above it (row r of a segment at
    `length + r`), and `keep` commits the accepted ones. Rows that are not kept are overwritten by
    the next pass.
    """

    num_slots: int
    max_len: int

    def length(self, slot: int) -> int:
        """Committed rows of a slot."""
        ...

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Commit scratch rows `path` (ascending, counted from the committed length) in order; the rest is forgotten."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed rows from `length` on."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` rows of `target` those of `source`; its committed length becomes `length`."""
        ...

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer; k and v are (n, G, E)."""
        ...

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's rows 0 to `stop`, each (G, stop, E), views where possible."""
        ...

    def nbytes(self) -> int:
        """Bytes allocated."""
        ...
