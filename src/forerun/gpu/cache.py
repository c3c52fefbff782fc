"""Keys and values in blocks on the device, in the layouts of `attention`; whose block a row is in stays on the host.

P blocks of 64 rows, G kv heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forerun.core.config import Precision
from forerun.core.errors import CapacityError, ConfigError
from forerun.gpu.host import to_device
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.config import ModelConfig

_DTYPES = {"auto": torch.float16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class Layer:
    """keys (P, G, E, 64), of int8 (P, G, 64, E); values (P, G, 64, E).

    key_scales (P, G, E / 32, 64) fp16, value_scales (P, G, 64) fp32; of floats they are empty.
    """

    keys: Tensor
    key_scales: Tensor
    values: Tensor
    value_scales: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As the kernels take them."""
        return self.keys, self.key_scales, self.values, self.value_scales

    def by_row(self) -> Iterator[Tensor]:
        """Yield views (P, 64, ...): what a cache row holds."""
        is_int8 = self.keys.dtype == torch.int8
        yield self.keys.movedim(2 if is_int8 else 3, 1)
        yield self.values.movedim(2, 1)
        if is_int8:
            yield self.key_scales.movedim(3, 1)
            yield self.value_scales.movedim(2, 1)


class GpuCache(KVCache):
    """Keys and values of `num_slots` sequences in `num_blocks` blocks, stored as `kv` says; `auto` is fp16.

    Raises ConfigError for int4, CapacityError where the device has no memory for it.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
        device: torch.device | str = "cuda",
    ) -> None:
        super().__init__(num_slots, max_len, num_blocks)
        if kv not in _DTYPES:
            raise ConfigError(
                f"a GPU keeps keys and values as fp16, fp32 or int8, not {kv}; use --device cpu",
                option="kv",
            )
        self.is_int8 = kv == "int8"
        self._dtype, self._device = _DTYPES[kv], device
        try:
            self.layers = [self._layer(*heads) for heads in config.stored_heads()]
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"{device} has no memory for {self.pool.num_blocks} blocks of keys and values: allow fewer "
                "sequences, a shorter context or --kv int8, or use --device cpu"
            ) from error
        nbytes = sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors)
        self.pool.block_nbytes = nbytes // self.pool.num_blocks

    def _layer(self, num_heads: int, dim: int) -> Layer:
        blocks, rows = self.pool.num_blocks, BLOCK_ROWS

        def room(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(blocks, num_heads, *shape, dtype=dtype, device=self._device)

        values = room(rows, dim, dtype=self._dtype)
        if not self.is_int8:
            none = room(0, dtype=self._dtype)
            return Layer(room(dim, rows, dtype=self._dtype), none, values, none)
        scales = room(-(-dim // 32), rows, dtype=torch.float16), room(rows, dtype=torch.float32)
        return Layer(torch.zeros_like(values), scales[0], values, scales[1])

    def table(self, slot: int) -> list[int]:
        """Return the blocks of a slot."""
        return self._tables[slot]

    def begin_with(self, slot: int, source: int, num_rows: int) -> None:
        """Let a slot begin with the first rows of a slot, which may be the same, copied; it has no others then."""
        self.truncate(slot, num_rows if slot == source else 0)
        if slot != source and self.reserve(slot, num_rows):
            tables = self._tables[source], self._tables[slot]
            for block, own in zip(*tables, strict=False):
                self._copy_block(block, own)
            self.keep(slot, range(num_rows))

    def _locate(self, slot: int, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the blocks and rows in them (n,) of a slot's rows."""
        table = self._tables[slot]
        places = [(table[row // BLOCK_ROWS], row % BLOCK_ROWS) for row in rows]
        blocks, inside = to_device(np.array(places), self._device).unbind(1)
        return blocks, inside

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        blocks, inside = self._locate(slot, rows)
        to_blocks, to_inside = self._locate(slot, range(start, start + len(rows)))
        for layer in self.layers:
            for part in layer.by_row():
                part[to_blocks, to_inside] = part[blocks, inside]

    def _copy_block(self, source: int, target: int) -> None:
        for layer in self.layers:
            for part in layer.tensors:
                part[target] = part[source]
