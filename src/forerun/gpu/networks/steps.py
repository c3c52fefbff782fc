"""Networks whose step is a function of its rows: few rows run as a graph, whose inputs are one copy.

R rows of a step, K numbers and W inputs of a row, D hidden width of the target, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun import _native
from forerun.core.arrays import Floats
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.graphs import ROWS, Recorded
from forerun.gpu.networks.base import GpuNetwork, Steps

Shape = tuple[int, int, bool]
"""Rows of a graph, the depth whose weights they read, and whether they are the first of their sequences."""


class StepNetwork(GpuNetwork):
    """Starts from a state of the target; override `step_inputs` and `compute`."""

    def __init__(
        self, target: GpuDecoder, max_depth: int, *, sees_depth_alone: bool = False
    ) -> None:
        """Begin without weights, as `GpuNetwork` does."""
        super().__init__(target, max_depth, sees_depth_alone=sees_depth_alone)
        self.seeds: Floats = np.empty((0, self.width), np.float32)
        """What each sequence of the draft begins with: the state that the target's head read (sequences, D)."""
        self.num_sequences = 0
        """As many as drafts have had, for whose steps there is room."""
        self.graphs: dict[Shape, StepGraph] | None = {} if self.device.type == "cuda" else None
        """Made when they are first needed; None: kernel by kernel."""

    def begin_draft(
        self, num_steps: Sequence[int], rows: Sequence[int] | None, states: Floats | None
    ) -> _native.ComputedNetwork:
        """Begin a draft of sequences, of so many steps at most; return who is asked for these.

        They are rows of the target's states, None for all.
        """
        if states is None:
            raise ValueError("a state of the target is needed for every token")
        self.seeds = states if rows is None else states[[*rows]]
        if len(self.seeds) > self.num_sequences:
            self.num_sequences = len(self.seeds)
            if self.graphs is not None:
                self.graphs.clear()  # the room for more lies elsewhere
        return self.native

    def step_inputs(self, steps: Steps) -> tuple[NDArray[np.int32], Floats]:
        """Return numbers (K, R) and inputs (R, W) of rows."""
        raise NotImplementedError

    def compute(self, numbers: Tensor, given: Tensor, depth: int, *, is_first: bool) -> Tensor:
        """Compute what the head reads of rows (R, its width); `given`, of `step_inputs`, may be written to."""
        raise NotImplementedError

    def step_logits(self, steps: Steps) -> Tensor:
        """Compute the logits of rows (R, V')."""
        depth, is_first = self.own_depth(steps), bool(steps.above.max() < 0)
        numbers, given = self.step_inputs(steps)
        num_rows = next((each for each in ROWS if len(given) <= each), None)
        if self.graphs is None or num_rows is None:
            put = self.target.to_device
            x = self.compute(put(numbers), put(given), depth, is_first=is_first)
            return self.logits(x, depth)
        shape = num_rows, depth, is_first
        if shape not in self.graphs:
            self.graphs[shape] = StepGraph(self, shape, len(numbers), given.shape[1])
        return self.graphs[shape].run(numbers, given)


class StepGraph(Recorded):
    """The launches of a step of one shape."""

    def __init__(self, network: StepNetwork, shape: Shape, num_numbers: int, width: int) -> None:
        rows, self.depth, self.is_first = shape
        super().__init__(rows * (width + num_numbers), network.device)
        self.network, self._size = network, rows * width
        self.given = self.record[: self._size].view(torch.float32).view(rows, width)
        self.numbers = self.record[self._size :].view(num_numbers, rows)

    def launch(self) -> Tensor:
        """Launch a step; return the logits of all rows (R, V')."""
        x = self.network.compute(self.numbers, self.given, self.depth, is_first=self.is_first)
        return self.network.logits(x, self.depth)

    def run(self, numbers: NDArray[np.int32], given: Floats) -> Tensor:
        """Compute the logits (n, V') of rows, n at most R; the last one is repeated. The next step overwrites them."""
        words, count = self.words(), len(given)
        inputs = words[: self._size].view(np.float32).reshape(self.given.shape)
        others = words[self._size :].reshape(self.numbers.shape)
        inputs[:count], inputs[count:] = given, given[-1]
        others[:, :count], others[:, count:] = numbers, numbers[:, -1:]
        return self.send()[:count]
