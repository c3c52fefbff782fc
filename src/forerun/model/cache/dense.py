"""The dense KV cache: one preallocated rectangle, the oracle of the paged ones. It shares nothing.

L layers, B slots, n rows, G kv heads, S context, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core.config import Precision
from forerun.model.cache.base import RowCache
from forerun.model.kernels.reference import KEY_BLOCK


class DenseCache(RowCache):
    """Keys and values of `num_slots` sequences of at most `max_len` rows, each (L, B, G, S, E).

    They are stored as fp16 or fp32 and read as fp32, in whole key blocks of zeros.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        max_len: int,
        device: torch.device | str = "cpu",
        kv: Precision = "auto",
    ) -> None:
        super().__init__(num_slots, max_len)
        padded = -(-max_len // KEY_BLOCK) * KEY_BLOCK
        shape = (num_layers, num_slots, num_kv_heads, padded, head_dim)
        dtype = torch.float16 if kv == "fp16" else torch.float32
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer; k and v are (n, G, E)."""
        rows = slice(start, start + k.shape[0])
        self._keys[layer, slot, :, rows] = k.transpose(0, 1)
        self._values[layer, slot, :, rows] = v.transpose(0, 1)

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return one layer's keys and values, rows 0 to `stop`, each (G, stop, E); views if they are stored as fp32."""
        stored = self._keys[layer, slot, :, :stop], self._values[layer, slot, :, :stop]
        return stored[0].float(), stored[1].float()

    def nbytes(self) -> int:
        """Bytes of the allocated rows."""
        return self._keys.nbytes + self._values.nbytes

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        index = torch.tensor(rows, device=self._keys.device)
        for stored in (self._keys, self._values):
            moved = stored[:, slot].index_select(2, index)
            stored[:, slot, :, start : start + len(rows)] = moved
