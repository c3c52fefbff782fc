"""The dense KV cache: one preallocated rectangle, the oracle of cleverer caches.

It does not share rows between sequences and does not quantize. Storage is zeroed at the start and
rounded up to whole key blocks, so that a block can be read to its end: rows nobody wrote are hidden
by the mask but must be finite numbers.

L layers, B slots, G kv heads, S rows, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core.errors import CapacityError
from forerun.kernels.reference import KEY_BLOCK


class DenseCache:
    """Keys and values of `num_slots` sequences of at most `max_len` rows, each (L, B, G, S, E).

    The operating system commits the memory as rows are first written, not at construction.
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
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_slots = num_slots
        self.max_len = max_len
        padded = -(-max_len // KEY_BLOCK) * KEY_BLOCK
        shape = (num_layers, num_slots, num_kv_heads, padded, head_dim)
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)
        self._lengths = [0] * num_slots

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._keys.device

    @property
    def dtype(self) -> torch.dtype:
        """What the rows are stored in."""
        return self._keys.dtype

    def length(self, slot: int) -> int:
        """Committed rows of a slot."""
        return self._lengths[slot]

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Commit scratch rows `path` (ascending, counted from the committed length) in order.

        The other scratch rows are forgotten. Raises CapacityError for rows that do not exist.
        """
        base = self._lengths[slot]
        if any(b <= a for a, b in zip((-1, *path), path, strict=False)):
            raise ValueError(f"a path must ascend from 0, got {list(path)}")
        if path and base + path[-1] >= self.max_len:
            raise CapacityError(
                f"cache row {base + path[-1]} of slot {slot} does not exist: "
                f"it has {self.max_len} rows"
            )
        in_place = next((i for i, row in enumerate(path) if row != i), len(path))
        moved = torch.tensor(path[in_place:], dtype=torch.int64, device=self.device) + base
        target = slice(base + in_place, base + len(path))
        if in_place < len(path):
            for stored in (self._keys, self._values):
                stored[:, slot, :, target] = stored[:, slot].index_select(2, moved)
        self._lengths[slot] = base + len(path)

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed rows from `length` on."""
        if not 0 <= length <= self._lengths[slot]:
            raise ValueError(f"cannot cut slot {slot} of {self._lengths[slot]} rows to {length}")
        self._lengths[slot] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` rows of `target` those of `source`, and commit just them."""
        if not 0 <= length <= self._lengths[source]:
            raise ValueError(
                f"cannot copy {length} rows of slot {source}'s {self._lengths[source]}"
            )
        if source != target:
            for stored in (self._keys, self._values):
                stored[:, target, :, :length] = stored[:, source, :, :length]
        self._lengths[target] = length

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write scratch rows `start`... of one layer; k and v are (n, G, E)."""
        rows = slice(start, start + k.shape[0])
        self._keys[layer, slot, :, rows] = k.transpose(0, 1)
        self._values[layer, slot, :, rows] = v.transpose(0, 1)

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Views of one layer's keys and values, rows 0 to `stop`, each (G, stop, E).

        `stop` may reach the end of the last key block, beyond `max_len`. Rows never written are
        zeros.
        """
        return self._keys[layer, slot, :, :stop], self._values[layer, slot, :, :stop]

    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._keys.nbytes + self._values.nbytes
