"""The same rows through the CPU's kernels and through the GPU's, and caches that hold the same keys and values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.model.cache.base import KVCache
from forerun.model.config import ModelConfig
from forerun.weights.stored import StoredTensor

DEVICE = os.environ.get("FORERUN_TEST_DEVICE", "cpu")


def same(ours: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays have the same bits."""
    left, right = (np.ascontiguousarray(x).view(np.int32) for x in (ours, expected))
    return np.array_equal(left, right)


@dataclass
class Both:
    """A model on the CPU's kernels, and on those of `room`, which may be a broken copy of `forerun.gpu`."""

    config: ModelConfig
    native: NativeDecoder
    gpu: object

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        weights: dict[str, StoredTensor],
        room: ModuleType,
        **options: object,
    ) -> Both:
        native = load_native(config, weights.items(), num_threads=1, **options)
        return cls(config, native, room.load(config, weights.items(), device=DEVICE, **options))

    def caches(self, kv: Precision, num_slots: int = 1) -> tuple[KVCache, KVCache]:
        return tuple(model.new_cache(num_slots, 512, kv) for model in (self.native, self.gpu))

    def read(self, caches: tuple[KVCache, KVCache], slot: int, tokens: Sequence[int]) -> None:
        """Let the CPU read a prompt, and give its keys and values to both caches, in blocks anywhere in the pool."""
        native, gpu = caches
        if not tokens:
            return
        self.native.forward(Batch((Segment(slot, 0, tuple(tokens)),)), native)
        native.keep(slot, range(len(tokens)))
        spare = gpu.pool.take()  # so that blocks have other numbers here
        gpu.keep(slot, range(len(tokens)))
        gpu.pool.release([spare])
        for ours, expected in zip(gpu.table(slot), native._tables[slot], strict=True):
            put_block(gpu, ours, np.array(native.native.block(expected)), self.config)

    def compare(
        self, caches: tuple[KVCache, KVCache], *segments: Segment, keep: Iterable[int] = ()
    ) -> bool:
        """Whether the rows of a pass, behind each layer and at the end, have the same bits; then some are kept."""
        layers = tuple(range(self.config.num_layers))
        ours, expected = (
            model.forward(Batch(segments), cache, layers)
            for model, cache in zip((self.gpu, self.native), reversed(caches), strict=True)
        )
        for cache in caches:
            cache.keep(segments[0].slot, list(keep))
        return all(map(same, (ours.last, *ours.aux), (expected.last, *expected.aux)))


def put_block(cache: KVCache, block: int, page: np.ndarray, config: ModelConfig) -> None:
    """Write a block as csrc/kernels/kv.h lays it out into the device's, head by head."""
    import torch

    at = 0
    for layer, (heads, dim) in zip(cache.layers, config.stored_heads(), strict=True):
        for head in range(heads):
            sizes = [64 * dim, 64 * -(-dim // 32) * 2, 64 * dim, 64 * 4]
            sizes = sizes if cache.is_int8 else [128 * dim, 0, 128 * dim, 0]
            parts = np.split(page[at:], np.cumsum(sizes))[:4]
            at += -(-sum(sizes) // 64) * 64
            if cache.is_int8:
                keys = (parts[0].reshape(4, dim // 4, 16, 4) ^ 128).view(np.int8)
                keys = keys.transpose(0, 2, 1, 3).reshape(64, dim)
                values = parts[2].view(np.int8).reshape(16, dim, 4).swapaxes(1, 2).reshape(64, dim)
            else:
                keys = parts[0].view(np.float16).reshape(4, dim, 16).swapaxes(0, 1).reshape(dim, 64)
                values = parts[2].view(np.float16).reshape(64, dim)
            scales = parts[1].view(np.float16).reshape(-1, 64), parts[3].view(np.float32)
            for room, numbers in zip(layer.tensors, (keys, scales[0], values, scales[1])):
                if numbers.size:
                    room[block, head] = torch.from_numpy(numbers.copy()).to(room.device)
