"""Keys and values in the layout of the native kernels, in pages of 64 rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forerun.cache.base import KVCache
from forerun.nn.config import ModelConfig


class NativeCache(KVCache):
    """Keys and values of `num_slots` sequences, fp16 unless `dtype` is fp32."""

    def __init__(
        self, config: ModelConfig, num_slots: int, max_len: int, dtype: torch.dtype | None = None
    ) -> None:
        from forerun import _native

        super().__init__(num_slots, max_len)
        is_half = dtype in (None, torch.float16)
        shape = config.num_layers, config.num_kv_heads, config.head_dim, num_slots, max_len
        self.native = _native.Cache(*shape, is_half)

    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.native.nbytes()

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        self.native.move(slot, rows, start)

    def _copy(self, source: int, target: int, length: int) -> None:
        self.native.copy(source, target, length)
