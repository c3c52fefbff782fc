"""A block whose matrices are flattened, over whole texts; and what calibration must know of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from forerun.lab.quantize.flatten import FlatInputs, rounded
from forerun.lab.quantize.whole_block import Site, WholeBlock
from forerun.model.config import ModelConfig
from forerun.weights.flat import FlatParts

_SAMPLED = 128


class FlatBlock(WholeBlock):
    """The block with some of its matrices flattened, as the kernels compute them but for the rounding of sums."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], flat: Mapping[str, FlatParts]
    ) -> None:
        values = {name: torch.from_numpy(parts.values()) for name, parts in flat.items()}
        super().__init__(config, {**weights, **values})
        self.rows = {name: parts.rows for name, parts in flat.items()}

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return super()._linear(name, rounded(self.rows[name], x) if name in self.rows else x)


def observe(block: WholeBlock, states: Tensor) -> dict[Site, FlatInputs]:
    """Replace texts' hidden states (S, T, D) by the block's outputs; what its matrices read."""
    seen: dict[Site, FlatInputs] = {}
    count = states.shape[0] * states.shape[1]
    step = max(1, count // _SAMPLED)
    for i in range(len(states)):
        states[i], sites = block(states[i])
        for site, x in sites.items():
            gram, largest = x.T @ x / count, x.abs().amax(0)
            sample = x[(-i * len(x)) % step :: step]
            if site in seen:
                before = seen[site]
                gram += before.gram
                largest = torch.maximum(before.largest, largest)
                sample = torch.cat((before.sample, sample))
            seen[site] = FlatInputs(largest, gram, sample.clone())
    return seen
