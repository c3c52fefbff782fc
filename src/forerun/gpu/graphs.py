"""Passes of few rows as graphs: captured once for each shape, launched as one, told of a pass by one copy.

A graph's kernels read fixed places: a record of the pass's numbers and of its rows' inputs, which lies in pinned memory
and is copied to the device before each launch. Rows up to the captured number repeat the last one, whose keys and
values are then written twice alike; runs of chunks beyond the context have no keys. Neither changes a bit.

R rows of the graph, D width of what a pass is given of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.arrays import Floats
from forerun.core.batch import Batch
from forerun.gpu.cache import GpuCache
from forerun.gpu.cache import Layer as CacheLayer
from forerun.gpu.layers import Buffers, Layer
from forerun.gpu.passes import Pass, lay_out, on_device, run_starts
from forerun.model.cache.blocks import blocks_of
from forerun.model.config import ModelConfig

ROWS = (1, 4, 8, 16, 32)
"""Rows of the passes that are captured; larger ones are launched kernel by kernel."""
RUNS = (4, 16, 64)
"""Runs of chunks that they see, up to those of the cache."""
Shape = tuple[int, int, tuple[int, ...]]
"""Rows, runs, and the layers whose states are asked for."""


class Launches(Protocol):
    """What launches the kernels of a pass; implemented by `decoder.GpuDecoder`."""

    config: ModelConfig
    device: torch.device
    layers: list[Layer]

    @property
    def input_width(self) -> int:
        """The width of the rows that a pass is given."""
        ...

    def launch(
        self,
        given: Tensor,
        rows: Pass,
        cache: Sequence[CacheLayer],
        aux_layers: tuple[int, ...],
        buffers: Buffers,
    ) -> Tensor:
        """Launch the kernels; return the states of rows (1 + layers, R, D)."""
        ...


class Recorded:
    """Launches that read a record, as one: captured when they are first sent. Override `launch`."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        self.host = torch.zeros(num_words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.record = torch.zeros_like(self.host, device=device)
        self._out: Tensor = self.record
        self._replay: Callable[[], object] | None = None
        self._read = torch.cuda.Event() if device.type == "cuda" else None
        """When the device has read the record."""

    def words(self) -> NDArray[np.int32]:
        """Return the record to be written, as soon as the device has read the last one."""
        if self._read is not None:
            self._read.synchronize()
        found: NDArray[np.int32] = self.host.numpy()
        return found

    def send(self) -> Tensor:
        """Launch the kernels for what is written; return what `launch` does, which the next time overwrites."""
        self.record.copy_(self.host, non_blocking=True)
        if self._read is not None:
            self._read.record()
        if self._replay is None:
            # This first launch compiles, makes buffers, and is the pass itself.
            self._out = self.launch()
            self._replay = self._captured()
        else:
            self._replay()
        return self._out

    def launch(self) -> Tensor:
        """Launch the kernels one by one; return what they compute, in the same buffer each time."""
        raise NotImplementedError

    def _captured(self) -> Callable[[], object]:
        """Return what launches all kernels again; without a card the interpreter runs them one by one."""
        if self.record.device.type != "cuda":
            return self.launch
        torch.cuda.synchronize(self.record.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.launch()
        return graph.replay


class Graph(Recorded):
    """The launches of a pass of one shape over one cache."""

    def __init__(self, decoder: Launches, cache: GpuCache, shape: Shape, buffers: Buffers) -> None:
        rows, runs, self.aux_layers = shape
        self.decoder, self.layers, self.buffers = decoder, cache.layers, buffers
        self.shapes = {
            **dict.fromkeys(
                ("positions", "cache_rows", "bases", "slots", "ends", "befores"), (rows,)
            ),
            "paths": (rows, rows),
            "tables": (rows, blocks_of(cache.max_len)),
            "runs": (runs + 1,),
            "query_scales": (rows,),
        }
        self.sizes, width = sum(map(math.prod, self.shapes.values())), decoder.input_width
        super().__init__(self.sizes + rows * width, decoder.device)
        self.given = self.record[self.sizes :].view(torch.float32).view(rows, width)
        self.rows = on_device(self.record[: self.sizes], self.shapes, cache.max_len)

    def fits(self, numbers: Mapping[str, np.ndarray]) -> bool:
        """Return whether a pass has no longer paths or tables than the record has room for."""
        return all(numbers[name].shape[1] <= self.shapes[name][1] for name in ("paths", "tables"))

    def run(self, numbers: Mapping[str, np.ndarray], given: Floats) -> Tensor:
        """Compute rows whose inputs are given (n, D), n at most R; return their states (1 + layers, n, D).

        The next pass overwrites them.
        """
        self._write(numbers, given)
        return self.send()[:, : len(given)]

    def launch(self) -> Tensor:
        """Launch the pass; return the states of all rows (1 + layers, R, D)."""
        return self.decoder.launch(
            self.given, self.rows, self.layers, self.aux_layers, self.buffers
        )

    def _write(self, numbers: Mapping[str, np.ndarray], given: Floats) -> None:
        """Write a pass into the record, the last row repeated."""
        words, at = self.words(), 0
        for name, shape in self.shapes.items():
            room = words[at : at + math.prod(shape)].reshape(shape)
            at += room.size
            own = np.asarray(numbers[name], np.int32)
            if name == "runs":
                room[:] = run_starts_upto(len(room) - 1)
            elif room.ndim == 1:
                room[: len(own)], room[len(own) :] = own, own[-1]
            else:
                room[: len(own), : own.shape[1]] = own
                room[len(own) :] = room[len(own) - 1]
        inputs = words[at:].view(np.float32).reshape(self.given.shape)
        inputs[: len(given)], inputs[len(given) :] = given, given[-1]


class Graphs:
    """The graphs of a decoder, for the cache that it works with."""

    def __init__(self, decoder: Launches) -> None:
        self.decoder = decoder
        self._buffers = Buffers(decoder.device)
        self._found: WeakKeyDictionary[GpuCache, dict[Shape, Graph]] = WeakKeyDictionary()

    def run(
        self, batch: Batch, given: Floats, cache: GpuCache, aux_layers: tuple[int, ...]
    ) -> Tensor | None:
        """Return the states of rows, their inputs given (n, D), by a graph; None if there is none for such a pass.

        The next pass overwrites them.
        """
        rows = next((each for each in ROWS if batch.num_rows <= each), None)
        if rows is None:
            return None
        numbers = lay_out(batch, cache, self.decoder.config)
        runs = next((each for each in RUNS if len(numbers["runs"]) <= each + 1), None)
        if runs is None:
            return None
        graph = self._of(cache, (rows, runs, aux_layers))
        return graph.run(numbers, given) if graph.fits(numbers) else None

    def _of(self, cache: GpuCache, shape: Shape) -> Graph:
        known = self._found.get(cache)
        if known is None:
            self._found.clear()  # what lies elsewhere for this one's length, others would look for where it was
            self._make_room(cache)
            known = self._found[cache] = {}
        if shape not in known:
            known[shape] = Graph(self.decoder, cache, shape, self._buffers)
        return known[shape]

    def _make_room(self, cache: GpuCache) -> None:
        """Make what grows with rows and context as large as it gets: graphs hold its places for good."""
        width, layers = self.decoder.config.hidden_size, self.decoder.layers
        self._buffers.floats("states", 1 + len(layers), ROWS[-1], width)
        for layer in layers:
            layer.states(ROWS[-1], RUNS[-1], self._buffers)
            if layer.angles is not None:
                layer.angles.upto(cache.max_len)


def run_starts_upto(num_runs: int) -> list[int]:
    """Return the first chunks of so many runs, and the end."""
    num_chunks = 1
    while len(run_starts(num_chunks)) <= num_runs:
        num_chunks *= 2
    return run_starts(num_chunks)[: num_runs + 1]
