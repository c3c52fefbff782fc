"""Keys and values in the layout of the native kernels: they own the memory and the committed lengths.

G kv heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.nn.config import ModelConfig


class NativeCache:
    """Keys and values of `num_slots` sequences in the kernels' layout. Implements `cache.base.KVCache`."""

    def __init__(
        self, config: ModelConfig, num_slots: int, max_len: int, dtype: torch.dtype = torch.float16
    ) -> None:
        from forerun import _native

        self.num_slots = num_slots
        self.max_len = max_len
        self._heads = (config.num_kv_heads, config.head_dim)
        self.native = _native.Cache(
            config.num_layers, *self._heads, num_slots, max_len, dtype == torch.float16
        )

    def length(self, slot: int) -> int:
        """Committed rows of a slot."""
        return self.native.length(slot)

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Commit scratch rows `path` (ascending, counted from the committed length) in order."""
        self.native.keep(slot, list(path))

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed rows from `length` on."""
        self.native.truncate(slot, length)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` rows of `target` those of `source`; its committed length becomes `length`."""
        self.native.copy(source, target, length)

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
