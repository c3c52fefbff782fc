"""Medusa's heads on a device: csrc/drafters/medusa_network.cpp.

R rows of a step, D hidden width of the target.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.matrices import Matrix
from forerun.gpu.networks.base import GpuNetwork, Steps


class GpuMedusa(GpuNetwork):
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

    def cell(self, steps: Steps) -> Tensor:
        """Compute the rows (R, D) of one head."""
        x = self.seeds.index_select(0, self.target.to_device(steps.sequences))
        out = self.buffers.floats("out", *x.shape)
        for block in self._blocks[self.own_depth(steps)]:
            block.multiply(self.read("block", x, block), len(x), out)
            x += self.activate(out, "silu")
        return x
