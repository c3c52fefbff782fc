"""The KV cache protocols: what the engine and the drafters need, and what the torch reference model needs besides.

Rewinding is a call, not a trick: rejected rows are simply not kept.

n rows, G kv heads, S context, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class KVCache(Protocol):
    """Keys and values of `num_slots` sequences of at most `max_len` rows, one a token.

    Each slot has a committed length; a model writes scratch rows above it (row r of a segment at
    `length + r`), and `keep` commits the accepted ones. Rows that are not kept are overwritten by
    the next pass.
    """

    num_slots: int
    max_len: int

    def open(self, tokens: Sequence[int], *, reuse: bool = True) -> tuple[int, int] | None:
        """A slot for a sequence of these tokens, and how many rows of theirs are committed there already.

        With `reuse` those are the longest prefix known, but for the last token, which is left to
        compute: of slots that were closed, and of prompts of open slots as far as computed. None if
        no slot is free.
        """
        ...

    def reserve(self, slot: int, rows: int) -> bool:
        """Make room for so many rows above the committed ones; False if there is none."""
        ...

    def length(self, slot: int) -> int:
        """Committed rows of a slot."""
        ...

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Commit scratch rows `path` (ascending, counted from the committed length) in order; the rest is forgotten."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed rows from `length` on."""
        ...

    def close(self, slot: int, tokens: Sequence[int]) -> None:
        """Free a slot. Its committed rows, which are those of `tokens`, can be found until it is taken."""
        ...

    def nbytes(self) -> int:
        """Bytes allocated."""
        ...


@runtime_checkable
class RowCache(KVCache, Protocol):
    """A cache whose rows torch reads and writes."""

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer; k and v are (n, G, E) fp32."""
        ...

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's rows 0 to `stop`, each (G, stop, E) fp32, views where possible."""
        ...
