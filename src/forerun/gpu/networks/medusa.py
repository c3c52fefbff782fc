"""Medusa's heads on a device: csrc/drafters/medusa_network.cpp.

R rows of a step, D hidden width of the target.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.arrays import Floats
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.matrices import Matrix
from forerun.gpu.networks.base import Steps
from forerun.gpu.networks.steps import StepNetwork


class GpuMedusa(StepNetwork):
    """Head k reads the target's state alone: x + silu(W x + b) for each of its blocks."""

    def __init__(self, target: GpuDecoder, num_heads: int, num_layers: int) -> None:
        super().__init__(target, num_heads, sees_depth_alone=True)
        self.num_depths, self._num_layers = num_heads, num_layers
        self._blocks: list[list[Matrix]] = []
        """Of each head."""

    def check(self) -> None:
        """Find the blocks, "block.k.j" with "bias.k.j", and the heads."""
        self._blocks = [
            [self._block(f"{k}.{j}") for j in range(self._num_layers)]
            for k in range(self.num_depths)
        ]
        self.check_heads(self.width)

    def _block(self, name: str) -> Matrix:
        found = self.matrix(f"block.{name}", self.width, self.width)
        return replace(found, bias=self.norm(f"bias.{name}", self.width).weight, has_bias=True)

    def step_inputs(self, steps: Steps) -> tuple[NDArray[np.int32], Floats]:
        """Return no numbers, and the states (R, D)."""
        return np.empty((0, len(steps.tokens)), np.int32), self.seeds[steps.sequences]

    def compute(self, numbers: Tensor, given: Tensor, depth: int, *, is_first: bool) -> Tensor:
        """Compute the rows (R, D) of one head, in place."""
        x, out = given, self.room("out", *given.shape)
        for block in self._blocks[depth]:
            block.multiply(self.read("block", x, block), len(x), out)
            x += self.activate(out, "silu")
        return x
