"""Keys and values, and recurrent states, in the layout of the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.core.config import Precision
from forerun.core.errors import memory_refused
from forerun.model.cache.base import KVCache
from forerun.model.cache.int4 import check_head_dim
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.cache.store import PromptStore
from forerun.model.cache.tier import DiskTier
from forerun.model.config import ModelConfig

if TYPE_CHECKING:
    from forerun import _native


class NativeStates:
    """Recurrent states in a native cache. Implements `model.cache.states.StateMemory`."""

    def __init__(self, cache: _native.Cache, runtime: _native.Runtime) -> None:
        self.state_nbytes, self.rows_nbytes = cache.state_nbytes, cache.rows_nbytes
        self.place_state, self.clear_state = cache.place_state, cache.clear_state
        self.copy_state = cache.copy_state
        self._cache, self._runtime = cache, runtime

    def advance(self, slot: int, rows: int) -> None:
        """Bring the state of a slot one block further, to `rows` rows, with the runtime's threads."""
        self._cache.advance(self._runtime, slot, rows)


class NativeCache(KVCache):
    """Keys and values of `num_slots` sequences in `num_blocks` blocks, stored as `kv` says; `auto` is fp16.

    A recurrent model's states are brought forward by the threads of `runtime`. Raises CapacityError where the system
    refuses the memory.
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
        runtime: _native.Runtime | None = None,
    ) -> None:
        from forerun import _native

        super().__init__(num_slots, max_len, num_blocks)
        stored = config.stored_heads()
        for layer, (_, head_dim) in enumerate(stored):
            check_head_dim(kv, head_dim, config.value_dim(layer))
        form = "fp16" if kv == "auto" else kv
        checkpoints = num_slots if num_checkpoints is None else num_checkpoints
        kinds = [config.layer(i).recurrent for i in range(config.num_layers)]
        with memory_refused(f"{self.pool.num_blocks} blocks of keys and values"):
            self.native = _native.Cache(
                stored,
                num_slots,
                max_len,
                form,
                self.pool.num_blocks,
                kinds,
                config.hidden_size,
                num_slots + checkpoints,
                draft_rows,
                [config.value_dim(i) for i in range(config.num_layers)],
            )
        if config.is_recurrent:
            assert runtime is not None, "states are brought forward by a runtime's threads"
            self.keep_states(NativeStates(self.native, runtime), checkpoints, draft_rows)
        self.pool.block_nbytes = self.native.block_nbytes

    def keep_on(self, store: PromptStore, *, only_shared: bool = False) -> None:
        """Read blocks from a store that the pool does not know, and keep those there whose sequences have ended.

        With `only_shared` just the instructions that conversations share.
        """
        parts = (self.native.block, self.native.state)
        self.disk = DiskTier(store, self.pool, self.states, *parts, only_shared=only_shared)

    def _place(self, slot: int, index: int, block: int) -> None:
        super()._place(slot, index, block)
        self.native.place(slot, index, block)

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        self.native.move(slot, rows, start)

    def _copy_block(self, source: int, target: int) -> None:
        self.native.copy_block(source, target)
