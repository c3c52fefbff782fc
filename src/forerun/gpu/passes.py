"""What the kernels are told of a pass: positions, where rows lie, paths, angles; one copy brings it to the device.

R rows, S segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forerun import _native
from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.gpu.cache import GpuCache
from forerun.gpu.host import to_device
from forerun.model.cache.blocks import BLOCK_ROWS, blocks_of
from forerun.model.config import ModelConfig, RopeConfig

NEVER = 1 << 30
"""The base of rows whose positions are all at the cache rows of that number."""
CHUNKS_OF_A_RUN = 2
"""At least."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Numbers of a pass on the device, int32."""

    num_rows: int
    stop: int
    """Behind the farthest position."""
    positions: Tensor
    """(R,)."""
    cache_rows: Tensor
    """(R,): where in its slot a row's keys and values are written."""
    bases: Tensor
    """(R,): from which position on its path says where these are."""
    slots: Tensor
    """(R,): whose table is its own."""
    ends: Tensor
    """(R,): the last position of its segment, which all rows of a block see."""
    befores: Tensor
    """(R,): the last position before its segment."""
    paths: Tensor
    """(R, longest path): cache rows of positions base, base + 1, ..."""
    tables: Tensor
    """(S, most blocks)."""
    runs: Tensor
    """First chunks of the runs that the farthest row sees, and their end."""
    query_scales: Tensor
    """(R,) fp32."""

    @property
    def num_runs(self) -> int:
        """Runs of chunks."""
        return len(self.runs) - 1


def plan(batch: Batch, cache: GpuCache, config: ModelConfig, device: torch.device | str) -> Pass:
    """Lay out a pass and copy it to the device."""
    numbers = lay_out(batch, cache, config)
    flat = np.concatenate([each.ravel().astype(np.int32) for each in numbers.values()])
    shapes = {name: each.shape for name, each in numbers.items()}
    return on_device(to_device(flat, device), shapes, int(batch.positions().max()) + 1)


def lay_out(batch: Batch, cache: GpuCache, config: ModelConfig) -> dict[str, np.ndarray]:
    """Return the numbers of a pass by their names in `Pass`, all of 32 bits."""
    segments, positions = batch.segments, batch.positions()
    stop, heights = int(positions.max()) + 1, [s.num_rows for s in segments]
    return {
        "positions": positions,
        "cache_rows": np.concatenate([s.base + np.arange(s.first, s.stop) for s in segments]),
        "bases": np.repeat([s.base if s.parents else NEVER for s in segments], heights),
        "slots": np.repeat(np.arange(len(segments)), heights),
        "ends": np.repeat([s.base + s.stop - 1 for s in segments], heights),
        "befores": np.repeat([s.base - 1 for s in segments], heights),
        "paths": _rectangle([path for s in segments for path in _paths(s)]),
        "tables": _rectangle([cache.table(s.slot)[: blocks_of(s.base + s.stop)] for s in segments]),
        "runs": np.array(run_starts(blocks_of(stop))),
        "query_scales": _query_scales(positions, config).view(np.int32),
    }


def on_device(flat: Tensor, shapes: Mapping[str, tuple[int, ...]], stop: int) -> Pass:
    """Return the pass whose numbers lie one behind the other on the device; `stop` is behind its positions."""
    parts = zip(shapes.items(), flat.split([*map(math.prod, shapes.values())]), strict=True)
    found = {name: part.view(shape) for (name, shape), part in parts}
    scales = found.pop("query_scales").view(torch.float32)
    return Pass(shapes["positions"][0], stop, **found, query_scales=scales)


def _paths(segment: Segment) -> Iterator[list[int]]:
    """Yield each row's path: cache rows of the nodes from the committed rows to itself."""
    if segment.parents is None:
        yield from ([] for _ in range(segment.num_rows))
        return
    for seen in tree.ancestors(segment.parents[: segment.stop])[segment.first :]:
        yield (segment.base + np.flatnonzero(seen)).tolist()


def _rectangle(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return rows of different lengths as one array, at least one wide."""
    filled = np.zeros((len(rows), max(1, *map(len, rows))), np.int32)
    for row, values in zip(filled, rows, strict=True):
        row[: len(values)] = values
    return filled


def run_starts(num_chunks: int) -> list[int]:
    """Return the first chunks of runs, and the end: csrc/model/types.h `run_stop`."""
    starts = [0]
    while starts[-1] < num_chunks:
        length = CHUNKS_OF_A_RUN
        while 32 * length <= starts[-1]:
            length *= 2
        starts.append((starts[-1] // length + 1) * length)
    return starts


def _query_scales(positions: np.ndarray, config: ModelConfig) -> Floats:
    """Return what queries are multiplied by (R,), fp32, as csrc/model/plan.cpp does."""
    scale = np.float32(config.scale)
    if config.query_growth == 0:
        return np.full(len(positions), scale, np.float32)
    logs = _evaluate("log1p", positions // config.query_growth_every)
    return scale * (np.float32(1) + np.float32(config.query_growth) * logs)


class Angles:
    """Cosines and sines (positions, half) of a rotary embedding on the device, made as far as they are asked for.

    They are the CPU's, as csrc/model/plan.cpp has them, and not the device's.
    """

    def __init__(self, rope: RopeConfig, device: torch.device | str) -> None:
        self._frequencies, self._factor = (
            rope.inverse_frequencies(),
            np.float32(rope.attention_factor),
        )
        self.half, self._device = len(self._frequencies), device
        self._tables = (torch.zeros(0, self.half, device=device),) * 2

    def upto(self, stop: int) -> tuple[Tensor, Tensor]:
        """Return the tables of positions below `stop` at least."""
        known = len(self._tables[0])
        if known < stop:
            positions = np.arange(known, max(stop, known + BLOCK_ROWS), dtype=np.float32)
            angles = positions[:, None] * self._frequencies
            for_both = []
            for table, name in zip(self._tables, ("cos", "sin"), strict=True):
                values = _evaluate(name, angles) * self._factor
                more = torch.from_numpy(values).to(self._device)
                for_both.append(torch.cat((table, more)))
            self._tables = for_both[0], for_both[1]
        return self._tables


def _evaluate(function: str, x: Floats) -> Floats:
    """Return a function of numbers, of any shape, as the CPU's kernels have it."""
    out = np.empty(x.size, np.float32)
    _native.evaluate(function, np.ascontiguousarray(x, np.float32).ravel(), out)
    return out.reshape(x.shape)
