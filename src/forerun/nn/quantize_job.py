"""Quantizing a model block by block, in bounded memory, into a Hugging Face folder.

Beside one block only the hidden states of the calibration text are held. They and the finished blocks lie in
`<folder>.partial`, so that a job that was killed goes on after its last block; at the end the folder gets its name.
Inputs of a block come from the unrounded blocks before it, as in AWQ; a held-out text runs through the rounded ones
too, which gives the perplexity before and after in the same pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.formats.coded import Parts
from forerun.formats.hf_layouts import Layout, config_of, tensors_of
from forerun.nn.awq_block import MATRICES, clipped, scale
from forerun.nn.config import ModelConfig, weight_shapes
from forerun.nn.quantize_folder import QuantizeFolder
from forerun.nn.whole_block import READERS, Site, WholeBlock, advance
from forerun.quant.awq import Inputs
from forerun.quant.grid import Coded, Grid

Method = Literal["rtn", "awq"]
METHODS: tuple[Method, ...] = ("rtn", "awq")
SITE_OF: Mapping[str, Site] = {name: site for site, names in READERS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to round: the method, the grid, and the layout that is written."""

    method: Method
    grid: Grid
    layout: Layout


@dataclass
class BlockStates:
    """Hidden states of the calibration text (S, T, D), and of the held-out one before and after rounding (H, T, D)."""

    calibration: Tensor
    held: Tensor
    rounded: Tensor


@dataclass(kw_only=True)
class QuantizeJob(QuantizeFolder):
    """One model, one recipe. Raises as QuantizeFolder."""

    recipe: Recipe
    errors: dict[str, float] = field(default_factory=dict)
    """Of each matrix: the error of its outputs (of its weights, without calibration), relative to their size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recipe.method == "awq" and not self.calibration:
            raise ConfigError("method awq needs a text to calibrate on: give --calib FILE")

    @property
    def num_steps(self) -> int:
        """How far `run` counts."""
        return self.config.num_layers

    def run(self) -> Iterator[int]:
        """Round all blocks; yields how many are done, those of an earlier start included. Raises OSError."""
        self.claim()
        done, hidden = self._resume()
        yield done
        for layer in range(done, self.config.num_layers):
            rounded = self._round(layer, self.weights(layer), hidden)
            self.write_block(layer, rounded, self._tensors)
            known = {"done": layer + 1, "errors": self.errors}
            self.save_state(known, vars(hidden))
            yield layer + 1

    def finish(self) -> dict[str, float]:
        """Write what is left and give the folder its name; perplexities, if there is a held-out text, and bytes."""
        _, hidden = self._resume()
        figures = {}
        if len(self.held):
            targets = torch.tensor(self.held)
            for name, states in (("ppl_before", hidden.held), ("ppl_after", hidden.rounded)):
                figures[name] = math.exp(self.outside.loss(states, targets))
        self.save_outside()
        nbytes = self.write_folder(self._config)
        self.rename()
        return figures | {"nbytes": nbytes}

    def _tensors(self, name: str, parts: Parts) -> dict[str, np.ndarray]:
        return tensors_of(name, parts, self.recipe.grid.bits, self.recipe.layout)

    def _config(self, left_alone: list[str]) -> dict[str, object]:
        grid = self.recipe.grid
        return config_of(self.recipe.layout, grid.bits, grid.group, left_alone)

    def _resume(self) -> tuple[int, BlockStates]:
        if (state := self.load_state()) is not None:
            known, tensors = state
            self.errors = known["errors"]
            return known["done"], BlockStates(**tensors)
        states = [self.outside.embed(texts) for texts in (self.calibration, self.held)]
        return 0, BlockStates(states[0], states[1], states[1].clone())

    def _round(
        self, layer: int, weights: dict[str, Tensor], hidden: BlockStates
    ) -> dict[str, Tensor | Coded]:
        """The block's weights for the folder; the hidden states become its outputs."""
        inputs = observe(WholeBlock(self.config, weights), hidden.calibration)
        advance(WholeBlock(self.config, weights), hidden.held)
        if self.recipe.method == "awq":
            weights, inputs = scale(self.config, weights, inputs, self.recipe.grid)
        written: dict[str, Tensor | Coded] = dict(weights)
        for name in MATRICES:
            if name in weights:
                seen = inputs.get(SITE_OF[name])
                coded, error = self._round_matrix(name, weights.pop(name), seen)
                self.errors[f"{layer}.{name}"] = error
                written[name] = coded
        if len(hidden.rounded):
            values = {n: w.values() if isinstance(w, Coded) else w for n, w in written.items()}
            advance(WholeBlock(self.config, values), hidden.rounded)
        return written

    def _round_matrix(
        self, name: str, weight: Tensor, inputs: Inputs | None
    ) -> tuple[Coded, float]:
        grid = self.recipe.grid
        if inputs is None:
            coded = grid.round(weight)
            difference = (coded.values() - weight).square().sum()
            return coded, float(difference / weight.square().sum().clamp(min=1e-30))
        is_clipped = self.recipe.method == "awq"
        coded = grid.round(clipped(name, weight, inputs, grid) if is_clipped else weight)
        return coded, inputs.error(coded.values() - weight) / max(inputs.error(weight), 1e-30)


def observe(block: WholeBlock, states: Tensor) -> dict[Site, Inputs]:
    """Replace texts' hidden states (S, T, D) by the block's outputs; statistics of what its matrices read."""
    sums: dict[Site, tuple[Tensor, Tensor]] = {}
    for i in range(len(states)):
        states[i], sites = block(states[i])
        for site, x in sites.items():
            gram, size = x.T @ x, x.abs().sum(0)
            before = sums.get(site)
            sums[site] = (gram, size) if before is None else (before[0] + gram, before[1] + size)
    count = states.shape[0] * states.shape[1]
    return {site: Inputs(size / count, gram / count) for site, (gram, size) in sums.items()}


def peak_nbytes(config: ModelConfig, method: Method, num_tokens: int) -> int:
    """About how much memory a job takes at most, beside what the process has at its start."""
    shapes = weight_shapes(config)
    block = sum(math.prod(s) for n, s in shapes.items() if n.startswith("layers.0."))
    largest = max(math.prod(s) for n, s in shapes.items() if n.startswith("layers.0."))
    width, inner = config.hidden_size, config.intermediate_size
    states = 2 * 4 * num_tokens * width  # and a copy while they are written
    grams = 2 * 4 * (2 * width**2 + (config.num_heads * config.head_dim) ** 2 + inner**2)
    searching = 4 * (2 * block + 8 * largest) + grams if method == "awq" else 4 * 3 * block
    outside = 3 * 2 * math.prod(shapes["embed"])
    return states + max(searching, outside)
