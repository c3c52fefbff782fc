"""Keys and values in torch tensors, which the torch reference model reads and writes.

L layers, n rows, P blocks, G kv heads, S context, E head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from forerun.core.batch import Segment
from forerun.core.config import Precision
from forerun.lab.torch.kv_formats import forms_of
from forerun.lab.torch.states import TensorStates
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import BLOCK_ROWS, blocks_of
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig


class TensorCache(KVCache):
    """Keys and values (L, G, P, BLOCK_ROWS, E), stored as `kv` says, fp32 if `auto`, and read as fp32."""

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
        num_checkpoints: int | None = None,
        draft_rows: int = DRAFT_ROWS,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_slots, max_len, num_blocks)
        heads = config.stored_heads()
        attending = [layer for layer, (num_heads, _) in enumerate(heads) if num_heads]
        self._index = {layer: i for i, layer in enumerate(attending)}
        self.heads = max(n for n, _ in heads), max(head_dim for _, head_dim in heads)
        widths = self.heads[1], max(config.value_dim(i) for i in range(config.num_layers))
        self._forms = forms_of(kv, *widths)
        self.recurrent: TensorStates | None = None
        if config.is_recurrent:
            checkpoints = num_slots if num_checkpoints is None else num_checkpoints
            self.recurrent = TensorStates(
                config, num_slots + checkpoints, num_slots, BLOCK_ROWS + draft_rows, device
            )
            self.keep_states(self.recurrent, checkpoints, draft_rows)
        shape = (len(self._index), self.heads[0], self.pool.num_blocks, BLOCK_ROWS)
        rows = (torch.zeros(width, device=device) for width in widths)
        self._keys, self._values = (
            tuple(part.new_zeros(*shape, len(part)) for part in form.encode(row))
            for form, row in zip(self._forms, rows, strict=True)
        )
        nbytes = sum(part.nbytes for part in self._parts())
        self.pool.block_nbytes = nbytes // self.pool.num_blocks

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer, which are reserved; k and v are (n, G, E) fp32."""
        blocks, rows = self._locate(slot, range(start, start + k.shape[0]))
        layer = self._index[layer]
        for form, stored, values in zip(self._forms, self._stored, (k, v), strict=True):
            for part, new in zip(stored, form.encode(values.transpose(0, 1)), strict=True):
                part[layer, :, blocks, rows] = new

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of one layer's rows 0 to `stop`, each (G, stop, E) fp32, views where possible.

        `stop` may be beyond the rows that were written; what is there are finite numbers.
        """
        layer, table = self._index[layer], self._tables[slot][: blocks_of(stop)] or [0]
        last = self.pool.num_blocks - 1
        for _ in range(blocks_of(stop) - len(table)):  # hidden rows: any finite numbers
            table = [*table, min(table[-1] + 1, last)]
        keys, values = (
            form.decode(tuple(_rows(part[layer], table)[:, :stop] for part in stored))
            for form, stored in zip(self._forms, self._stored, strict=True)
        )
        return keys, values

    def paths(self, segment: Segment) -> list[list[int]]:
        """Return for each row of a segment where its path's rows since the slot's recurrent state are kept.

        Empty without such states. Raises CapacityError for rows that they have no room for.
        """
        if self.recurrent is None:
            return []
        before, visible = self.recurrent.rows_before[segment.slot], segment.visible()
        paths = []
        for i in range(segment.num_rows):
            seen = (
                np.arange(segment.first + i + 1) if visible is None else np.flatnonzero(visible[i])
            )
            rows = [*range(before, segment.base), *(segment.base + seen).tolist()]
            uncommitted = [row for row in rows if row >= before]  # certain rows may lie before
            paths.append(self.recurrent.offsets(segment.slot, uncommitted))
        return paths

    def query(self, query: Tensor) -> Tensor:
        """Round queries (..., E) as the keys are, if those are whole numbers."""
        return self._forms[0].query(query)

    @property
    def _stored(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return self._keys, self._values

    def _parts(self) -> Iterator[Tensor]:
        yield from self._keys
        yield from self._values

    def _locate(self, slot: int, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the blocks and rows in them (n,) of a slot's rows."""
        table = self._tables[slot]
        locations = [(table[row // BLOCK_ROWS], row % BLOCK_ROWS) for row in rows]
        blocks, inside = torch.tensor(locations, device=self._keys[0].device).view(-1, 2).unbind(1)
        return blocks, inside

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        if self.recurrent is not None:
            self.recurrent.move(slot, rows, start)
        blocks, inside = self._locate(slot, rows)
        to_blocks, to_inside = self._locate(slot, range(start, start + len(rows)))
        for part in self._parts():
            part[:, :, to_blocks, to_inside] = part[:, :, blocks, inside]

    def _copy_block(self, source: int, target: int) -> None:
        for part in self._parts():
            part[:, :, target] = part[:, :, source]


def _rows(stored: Tensor, table: Sequence[int]) -> Tensor:
    """Return the rows (G, S, width) of blocks in (G, P, BLOCK_ROWS, width)."""
    first = table[0] if table else 0
    if list(table) == list(range(first, first + len(table))):
        return stored[:, first : first + len(table)].flatten(1, 2)
    return stored.index_select(1, torch.tensor(table, device=stored.device)).flatten(1, 2)
