"""Keys and values in the layout of the native kernels, in pages of 64 rows; the kernels own the memory.

n rows, G kv heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.cache.slots import SlotCache
from forerun.nn.config import ModelConfig


class NativeCache(SlotCache):
    """Keys and values of `num_slots` sequences, fp16 unless `dtype` is fp32. Implements `cache.base.RowCache`."""

    def __init__(
        self, config: ModelConfig, num_slots: int, max_len: int, dtype: torch.dtype | None = None
    ) -> None:
        from forerun import _native

        super().__init__(num_slots, max_len)
        self._heads = (config.num_kv_heads, config.head_dim)
        is_half = dtype in (None, torch.float16)
        self.native = _native.Cache(config.num_layers, *self._heads, num_slots, max_len, is_half)

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer; k and v are (n, G, E)."""
        by_head = [x.float().transpose(0, 1).contiguous().numpy() for x in (k, v)]  # (G, n, E)
        self.native.write(layer, slot, start, *by_head)

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Copies of one layer's keys and values of rows 0 to `stop`, each (G, stop, E), fp32."""
        heads, width = self._heads
        k, v = (torch.empty(heads, stop, width) for _ in range(2))
        self.native.read(layer, slot, k.numpy(), v.numpy())
        return k, v

    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.native.nbytes()

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        self.native.move(slot, rows, start)

    def _copy(self, source: int, target: int, length: int) -> None:
        self.native.copy(source, target, length)
