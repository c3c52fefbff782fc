"""Quantizing a model block by block, in bounded memory, into a Hugging Face folder.

Beside one block only the hidden states of the calibration text are held. They and the finished blocks lie in
`<folder>.partial`, so that a job that was killed goes on after its last block; at the end the folder gets its name.
Inputs of a block come from the unrounded blocks before it, as in AWQ; a held-out text runs through the rounded ones
too, which gives the perplexity before and after in the same pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from forerun.core.device import return_freed
from forerun.core.errors import ConfigError
from forerun.lab.quantize.awq import Inputs
from forerun.lab.quantize.awq_block import clipped, scale
from forerun.lab.quantize.gptq import Feedback, compensated
from forerun.lab.quantize.quantize_folder import QuantizeFolder
from forerun.lab.quantize.quantize_memory import awq_nbytes
from forerun.lab.quantize.whole_block import READERS, Site, WholeBlock, advance
from forerun.weights.coded import Parts
from forerun.weights.grid import Coded, Grid
from forerun.weights.hf_layouts import Layout, config_of, tensors_of

Method = Literal["rtn", "awq"]
METHODS: tuple[Method, ...] = ("rtn", "awq")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to round: the method, the grid, and the layout that is written."""

    method: Method
    grid: Grid
    layout: Layout
    gptq: bool = False
    """Whether columns make up for those that were rounded before them."""


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

    def peak_nbytes(self) -> int:
        """About how much memory it takes at most, beside what the process has before."""
        texts = (*self.calibration, *self.held, *self.held)
        return awq_nbytes(
            self.config,
            num_tokens=sum(map(len, texts)),
            length=max(map(len, texts), default=0),
            is_calibrated=bool(self.calibration),
            gptq=self.recipe.gptq,
        )

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
            del rounded
            return_freed()
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
        return_freed()
        if self.recipe.method == "awq":
            scale(self.config, weights, inputs, self.recipe.grid)
            return_freed()
        coded: dict[str, Coded] = {}
        names = [name for readers in READERS.values() for name in readers if name in weights]
        for site, readers in READERS.items():
            seen = inputs.pop(site, None)
            feedback = Feedback.of(seen.gram) if seen is not None and self.recipe.gptq else None
            for name in readers:
                if name in weights:
                    found = self._round_matrix(name, weights.pop(name), seen, feedback)
                    coded[name], self.errors[f"{layer}.{name}"] = found
                    self.on_matrix(len(coded) / len(names))
        return_freed()
        if len(hidden.rounded):
            values = {name: matrix.values() for name, matrix in coded.items()}
            advance(WholeBlock(self.config, weights | values), hidden.rounded)
        return {**weights, **coded}

    def _round_matrix(
        self, name: str, weight: Tensor, inputs: Inputs | None, feedback: Feedback | None
    ) -> tuple[Coded, float]:
        grid = self.recipe.grid
        if inputs is None:
            coded = grid.round(weight)
            difference = (coded.values() - weight).square().sum()
            return coded, float(difference / weight.square().sum().clamp(min=1e-30))
        is_clipped = self.recipe.method == "awq"
        cut = clipped(name, weight, inputs, grid) if is_clipped else weight
        if feedback is None:
            coded = grid.round(cut)
        else:
            scales, zeros = grid.ranges(cut)
            codes = compensated(weight, feedback, scales, zeros, (0, grid.top))
            coded = Coded(codes.to(torch.uint8).contiguous(), scales, zeros)
        del cut
        return coded, inputs.error(coded.values() - weight) / max(inputs.error(weight), 1e-30)


def observe(block: WholeBlock, states: Tensor) -> dict[Site, Inputs]:
    """Replace texts' hidden states (S, T, D) by the block's outputs; statistics of what its matrices read."""
    seen: dict[Site, Inputs] = {}
    for i in range(len(states)):
        states[i], sites = block(states[i])
        for site, x in sites.items():
            width = x.shape[1]
            if site not in seen:
                seen[site] = Inputs(torch.zeros(width), torch.zeros(width, width))
            seen[site].magnitude.add_(x.abs().sum(0))
            seen[site].gram.addmm_(x.T, x)
    count = states.shape[0] * states.shape[1]
    for inputs in seen.values():
        inputs.magnitude.div_(count)
        inputs.gram.div_(count)
    return seen
