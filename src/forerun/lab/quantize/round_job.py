"""Rounding to nearest, AWQ, GPTQ or both: a block's matrices, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from forerun.core.device import return_freed
from forerun.lab.quantize.awq import Inputs, clipped, search_scales
from forerun.lab.quantize.block import MATRICES, READERS, Site, WholeBlock, advance, observe
from forerun.lab.quantize.gptq import Feedback, compensated
from forerun.lab.quantize.grid import Grid, coded
from forerun.lab.quantize.hf_layouts import Layout, config_of, tensors_of
from forerun.lab.quantize.job import QuantizeJob, States, wants_text
from forerun.lab.quantize.memory import awq_nbytes
from forerun.model.config import ModelConfig
from forerun.weights.codes import Codes

Method = Literal["rtn", "awq", "gptq", "awq+gptq"]
METHODS: tuple[Method, ...] = ("rtn", "awq", "gptq", "awq+gptq")
_PROBES = 4
"""Texts on which AWQ compares the outputs of a block's halves."""
_UNCLIPPED = ("q", "k")
"""Their product, not their outputs, is what counts (AutoAWQ)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to round: the method, the grid, and the layout that is written."""

    method: Method
    grid: Grid
    layout: Layout
    clip: bool = True
    """Of `awq` alone: ranges of groups are cut where that errs less."""

    @property
    def scales(self) -> bool:
        """Whether columns are scaled by their inputs, which is AWQ."""
        return self.method.startswith("awq")

    @property
    def feeds_back(self) -> bool:
        """Whether columns make up for the rounding of others, which is GPTQ."""
        return self.method.endswith("gptq")

    def described(self) -> dict[str, object]:
        """Return the recipe as the report has it."""
        shown: dict[str, object] = {"method": self.method, "bits": self.grid.bits}
        if self.method == "awq":
            shown["clip"] = self.clip
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


def output_error(
    config: ModelConfig, weights: Mapping[str, Tensor], site: Site, probes: Tensor
) -> Callable[[Sequence[Tensor]], float] | None:
    """Return how far a half of the block is off on texts (S, T, D) with other matrices at a site.

    None where the site's matrix is the last of its half: its own outputs are the half's.
    """
    half = {"attn": WholeBlock.attention, "mlp": WholeBlock.mlp}.get(site)
    if half is None:
        return None
    readers, whole = (
        [name for name in READERS[site] if name in weights],
        WholeBlock(config, weights),
    )
    states = [*probes]
    if site == "mlp":
        states = [x + whole.attention(x) * config.residual_multiplier for x in probes]
    exact = [half(whole, x) for x in states]

    def error(matrices: Sequence[Tensor]) -> float:
        block = WholeBlock(config, {**weights, **dict(zip(readers, matrices, strict=True))})
        pairs = zip(states, exact, strict=True)
        return sum(float((half(block, x) - out).square().mean()) for x, out in pairs)

    return error


def scale(
    config: ModelConfig,
    weights: dict[str, Tensor],
    inputs: dict[Site, Inputs],
    grid: Grid,
    probes: Tensor | None = None,
) -> None:
    """Put the scales into the block's weights and inputs: the same function, easier to round.

    `probes` (S, T, D), states before the block, are those on which outputs are compared, None: rows of each matrix.
    """
    for site, source in scale_groups(config):
        readers = [name for name in READERS[site] if name in weights]
        error = None if probes is None else output_error(config, weights, site, probes)
        scales = search_scales([weights[name] for name in readers], inputs[site], grid, error)
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
        weights, recipe = self.weights(step), self.recipe
        probes = states["calibration"][:_PROBES].clone() if recipe.method == "awq" else None
        inputs = observe(WholeBlock(self.config, weights), states["calibration"])
        advance(WholeBlock(self.config, weights), states["held"])
        return_freed()
        if recipe.scales:
            scale(self.config, weights, inputs, recipe.grid, probes)
            return_freed()
        rounded: dict[str, Codes] = {}
        names = [name for name in MATRICES if name in weights]
        for site, readers in READERS.items():
            seen = inputs.pop(site, None)
            feedback = None
            if seen is not None and recipe.feeds_back:
                feedback = Feedback.of(seen.gram, seen.num_tokens)
            for name in readers:
                if name in weights:
                    weight = weights.pop(name)
                    exact = weight
                    if (
                        seen is not None
                        and recipe.method == "awq"
                        and recipe.clip
                        and name not in _UNCLIPPED
                    ):
                        weight = clipped(weight, seen, recipe.grid)
                    codes = self._round_matrix(weight, exact, seen, feedback)
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
        self, weight: Tensor, exact: Tensor, inputs: Inputs | None, feedback: Feedback | None
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
        error = inputs.error(torch.from_numpy(codes.values()) - exact)
        return codes, error / max(inputs.error(exact), 1e-30)
