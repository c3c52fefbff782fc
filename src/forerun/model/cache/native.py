"""Keys and values in the layout of the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.config import Precision
from forerun.core.errors import memory_refused
from forerun.model.cache.base import KVCache
from forerun.model.cache.forms import check_head_dim
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig


class NativeCache(KVCache):
    """Keys and values of `num_slots` sequences in `num_blocks` blocks, stored as `kv` says; `auto` is fp16.

    Raises CapacityError where the system refuses the memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
        num_checkpoints: int | None = None,
        draft_rows: int = DRAFT_ROWS,
    ) -> None:
        from forerun import _native

        super().__init__(num_slots, max_len, num_blocks)
        stored = config.stored_heads()
        for _, head_dim in stored:
            check_head_dim(kv, head_dim)
        form = "fp16" if kv == "auto" else kv
        with memory_refused(f"{self.pool.num_blocks} blocks of keys and values"):
            self.native = _native.Cache(stored, num_slots, max_len, form, self.pool.num_blocks)
        self.pool.block_nbytes, self.pool.drop = self.native.block_nbytes, self.native.drop_block

    def _place(self, slot: int, index: int, block: int) -> None:
        super()._place(slot, index, block)
        self.native.place(slot, index, block)

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        self.native.move(slot, rows, start)

    def _copy_block(self, source: int, target: int) -> None:
        self.native.copy_block(source, target)
