"""A paged cache in torch tensors: what the torch reference model reads and writes.

L layers, n rows, P blocks, G kv heads, S context, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.cache.base import RowCache
from forerun.cache.blocks import BLOCK_ROWS
from forerun.cache.paged import PagedCache, blocks_of


class TensorCache(PagedCache, RowCache):
    """Keys and values (L, G, P, BLOCK_ROWS, E), stored as `dtype` and read as fp32."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        max_len: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        num_blocks: int | None = None,
    ) -> None:
        super().__init__(num_slots, max_len, num_blocks)
        shape = (num_layers, num_kv_heads, self.pool.num_blocks, BLOCK_ROWS, head_dim)
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block: keys and values of BLOCK_ROWS rows of all layers."""
        return (self._keys.nbytes + self._values.nbytes) // self.pool.num_blocks

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer, which are reserved; k and v are (n, G, E)."""
        blocks, rows = self._places(slot, range(start, start + k.shape[0]))
        self._keys[layer, :, blocks, rows] = k.transpose(0, 1).to(self._keys.dtype)
        self._values[layer, :, blocks, rows] = v.transpose(0, 1).to(self._values.dtype)

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """One layer's rows 0 to `stop`, each (G, stop, E); views if stored as fp32 in successive blocks."""
        table = self._tables[slot][: blocks_of(stop)] or [0]
        missing = blocks_of(stop) - len(table)
        # Hidden rows must be finite numbers, whoever they belong to.
        table = [
            *table,
            *(min(table[-1] + i, self.pool.num_blocks - 1) for i in range(1, missing + 1)),
        ]
        keys, values = (
            self._gather(stored[layer], table, stop) for stored in (self._keys, self._values)
        )
        return keys, values

    def _gather(self, stored: Tensor, table: Sequence[int], stop: int) -> Tensor:
        """Rows 0 to `stop` (G, stop, E) of blocks in (G, P, BLOCK_ROWS, E)."""
        first = table[0] if table else 0
        if list(table) == list(range(first, first + len(table))):
            blocks = stored[:, first : first + len(table)]
        else:
            blocks = stored.index_select(1, torch.tensor(table, device=stored.device))
        return blocks.flatten(1, 2)[:, :stop].float()

    def _places(self, slot: int, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Blocks and rows in them (n,) of a slot's rows."""
        table = self._tables[slot]
        places = [(table[row // BLOCK_ROWS], row % BLOCK_ROWS) for row in rows]
        blocks, inside = torch.tensor(places, device=self._keys.device).view(-1, 2).unbind(1)
        return blocks, inside

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        blocks, inside = self._places(slot, rows)
        to_blocks, to_inside = self._places(slot, range(start, start + len(rows)))
        for stored in (self._keys, self._values):
            stored[:, :, to_blocks, to_inside] = stored[:, :, blocks, inside]

    def _copy_block(self, source: int, target: int) -> None:
        for stored in (self._keys, self._values):
            stored[:, :, target] = stored[:, :, source]
