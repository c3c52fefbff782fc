"""Rounding to nearest, or AWQ with GPTQ's feedback: a block's matrices, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from forerun.core.device import return_freed
from forerun.lab.quantize.awq import Inputs, search_scales
from forerun.lab.quantize.block import MATRICES, READERS, Site, WholeBlock, advance, observe
from forerun.lab.quantize.gptq import Feedback, compensated
from forerun.lab.quantize.grid import Grid, coded
from forerun.lab.quantize.hf_layouts import Layout, config_of, tensors_of
from forerun.lab.quantize.job import QuantizeJob, States, wants_text
from forerun.lab.quantize.memory import awq_nbytes
from forerun.model.config import ModelConfig
from forerun.weights.codes import Codes

Method = Literal["rtn", "awq"]
METHODS: tuple[Method, ...] = ("rtn", "awq")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to round: the method, the grid, and the layout that is written."""

    method: Method
    grid: Grid
    layout: Layout

    def described(self) -> dict[str, object]:
        """Return the recipe as the report has it."""
        shown: dict[str, object] = {"method": self.method, "bits": self.grid.bits}
        return shown | {"group": self.grid.group or "channel", "format": self.layout}


def scale_groups(config: ModelConfig) -> Iterator[tuple[Site, str]]:
    """List where scaling changes nothing but rounding: a site, and the norm or rows that are divided before it.

    Heads that share values cannot be scaled apart, and only a gated MLP or ReLU hands scales on.
    """
    yield "attn", "attn_norm"
    if config.num_heads == config.num_kv_heads:
        yield "o", "v"
    yield "mlp", "mlp_norm"
    if config.gated_mlp or config.activation == "relu":
        yield "down", "up"


def scale(
    config: ModelConfig, weights: dict[str, Tensor], inputs: dict[Site, Inputs], grid: Grid
) -> None:
    """Put the scales into the block's weights and inputs: the same function, easier to round."""
    for site, source in scale_groups(config):
        readers = [name for name in READERS[site] if name in weights]
        scales = search_scales([weights[name] for name in readers], inputs[site], grid)
        inputs[site] = inputs[site].divided(scales)
        for name in readers:
            weights[name] = weights[name] * scales
        for name in (source, f"{source}.bias"):
            if name in weights:
                tensor = weights[name]
                weights[name] = tensor / (scales[:, None] if tensor.dim() > 1 else scales)


@dataclass(kw_only=True)
class RoundJob(QuantizeJob):
    """One model, one recipe. Raises as QuantizeJob."""

    recipe: Recipe

    def __post_init__(self) -> None:
        if self.recipe.method != "rtn":
            wants_text(self.recipe.method, self.calibration)
        super().__post_init__()

    def peak_nbytes(self) -> int:
        """Estimate from the sizes of a block and of the texts."""
        texts = (*self.calibration, *self.held_out, *self.held_out)
        return awq_nbytes(
            self.config,
            num_tokens=sum(map(len, texts)),
            length=max(map(len, texts), default=0),
            is_calibrated=bool(self.calibration),
        )

    def begin(self, calibration: Tensor, held_out: Tensor) -> States:
        """Begin with the held-out text twice: for the blocks before and after rounding."""
        return {"calibration": calibration, "held": held_out, "rounded": held_out.clone()}

    def quantization(self, left_alone: list[str]) -> Mapping[str, object]:
        """Return the quantization config of the layout."""
        grid = self.recipe.grid
        return config_of(self.recipe.layout, grid.bits, grid.group, left_alone)

    def step(self, step: int, states: States) -> None:
        """Round and write a block; the states become its outputs."""
        weights = self.weights(step)
        inputs = observe(WholeBlock(self.config, weights), states["calibration"])
        advance(WholeBlock(self.config, weights), states["held"])
        return_freed()
        if self.recipe.method == "awq":
            scale(self.config, weights, inputs, self.recipe.grid)
            return_freed()
        rounded: dict[str, Codes] = {}
        names = [name for name in MATRICES if name in weights]
        for site, readers in READERS.items():
            seen = inputs.pop(site, None)
            feedback = None
            if seen is not None and self.recipe.method == "awq":
                feedback = Feedback.of(seen.gram, seen.num_tokens)
            for name in readers:
                if name in weights:
                    codes = self._round_matrix(weights.pop(name), seen, feedback)
                    rounded[name], self.errors[f"{step}.{name}"] = codes
                    self.on_matrix(len(rounded) / len(names))
        return_freed()
        if len(states["rounded"]):
            values = {n: torch.from_numpy(matrix.values()) for n, matrix in rounded.items()}
            advance(WholeBlock(self.config, weights | values), states["rounded"])
            del values
        self.write_block(step, {**weights, **rounded}, self._tensors)

    def _tensors(self, name: str, codes: Codes) -> dict[str, np.ndarray]:
        return tensors_of(name, codes, self.recipe.grid.bits, self.recipe.layout)

    def _round_matrix(
        self, weight: Tensor, inputs: Inputs | None, feedback: Feedback | None
    ) -> tuple[Codes, float]:
        grid = self.recipe.grid
        if inputs is None:
            codes = grid.round(weight)
            difference = (torch.from_numpy(codes.values()) - weight).square().sum()
            return codes, float(difference / weight.square().sum().clamp(min=1e-30))
        if feedback is None:
            codes = grid.round(weight)
        else:
            scales, zeros = grid.ranges(weight)
            limits = (0, grid.top)
            codes = coded(compensated(weight, feedback, scales, zeros, limits), scales, zeros)
        error = inputs.error(torch.from_numpy(codes.values()) - weight)
        return codes, error / max(inputs.error(weight), 1e-30)
