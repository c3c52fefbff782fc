"""Rounding to nearest, AWQ, GPTQ or both: a block's matrices, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
from torch import Tensor

from forerun.lab.quantize.awq import Inputs, clipped, search_scales
from forerun.lab.quantize.block import (
    KEPT,
    Routed,
    WholeBlock,
    advance,
    inputs_of,
    matrices_of,
    observe,
)
from forerun.lab.quantize.gptq import Feedback, compensated
from forerun.lab.quantize.grid import Grid, coded
from forerun.lab.quantize.hf_export import below_each_other
from forerun.lab.quantize.hf_layouts import Layout, config_of, tensors_of
from forerun.lab.quantize.job import QuantizeJob, States, wants_text
from forerun.lab.quantize.memory import awq_nbytes
from forerun.lab.torch import reference as ops
from forerun.model.config import ModelConfig
from forerun.system.device import return_freed
from forerun.weights.codes import Codes

Method = Literal["rtn", "awq", "gptq", "awq+gptq"]
METHODS: tuple[Method, ...] = ("rtn", "awq", "gptq", "awq+gptq")
_PROBES = 4
"""Texts on which AWQ compares the outputs of a block's halves."""
_UNCLIPPED = ("q", "k")
"""Their product, not their outputs, is what counts (AutoAWQ)."""
FEW_ROWS = 16
"""An expert that fewer rows chose is rounded to nearest."""


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


def scale_groups(
    config: ModelConfig, layer: int, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """List where scaling changes nothing but rounding: a site, and the norm or rows that are divided before it.

    Heads that share values cannot be scaled apart, and only a gated MLP or ReLU hands scales on. A vector that reads a
    norm's rows beside matrices keeps that norm as it is.
    """
    kind = config.layer(layer)
    if "attn_norm" in weights:
        yield "attn", "attn_norm"
    num_kv_heads, _ = config.heads(layer)
    if "v" in weights and config.num_heads == num_kv_heads and not config.value_norm:
        yield "o", "v"
    if "mlp_norm" in weights and config.norms != "parallel" and "mlp_gate" not in weights:
        yield "mlp", "mlp_norm"
    if kind.has_mlp and hands_scales_on(config):
        yield "down", "up"


def hands_scales_on(config: ModelConfig) -> bool:
    """Tell whether a factor of a row of `up` is one of what `down` reads."""
    is_linear = config.gated_mlp and config.activation != "swiglu_oai"
    return is_linear or config.activation == "relu"


def readers_of(
    config: ModelConfig, layer: int, block: WholeBlock, weights: Mapping[str, Tensor], site: str
) -> list[str]:
    """Return the matrices that read a site, those of experts among them."""
    readers, experts = list(block.readers.get(site, ())), config.layer(layer).experts
    if experts is not None and not experts.has_norms and "router" in readers:
        readers += [name for name in ("expert_gate", "expert_up") if name in weights]
    return readers


def output_error(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    site: str,
    probes: Tensor,
    readers: Sequence[str] = (),
    layer: int = 0,
) -> Callable[[Sequence[Tensor]], float] | None:
    """Return how far a half of the block is off on texts (S, T, D) with other matrices, `readers`, at a site.

    None where the site's matrix is the last of its half: its own outputs are the half's.
    """
    if site not in ("attn", "mlp"):
        return None

    def half(block: WholeBlock, x: Tensor) -> Tensor:
        if site == "mlp":
            return block.after_mlp(x)
        # Of parallel halves both read what attention reads.
        return block(x)[0] if config.norms == "parallel" else block.attention(x)

    whole = WholeBlock(config, weights, layer)
    states = [whole.attended(x) for x in probes] if site == "mlp" else [*probes]
    exact = [half(whole, x) for x in states]

    def error(matrices: Sequence[Tensor]) -> float:
        changed = {**weights, **dict(zip(readers, matrices, strict=True))}
        block = WholeBlock(config, changed, layer)
        pairs = zip(states, exact, strict=True)
        return sum(float((half(block, x) - out).square().mean()) for x, out in pairs)

    return error


def scale(
    config: ModelConfig,
    weights: dict[str, Tensor],
    seen: Seen,
    grid: Grid,
    probes: Tensor | None = None,
    layer: int = 0,
) -> set[str]:
    """Put the scales into the block's weights and inputs: the same function, easier to round. Return what changed.

    `probes` (S, T, D), states before the block, are those on which outputs are compared, None: rows of each matrix.
    """
    changed: set[str] = set()
    for site, source in scale_groups(config, layer, weights):
        if site not in seen.inputs:
            continue
        readers = seen.readers[site]
        error = None
        rounds = [name for name in readers if name not in KEPT]
        if probes is not None:
            error = output_error(config, weights, site, probes, rounds, layer)
        matrices = [weights[name] for name in rounds]
        scales = search_scales(matrices, seen.inputs[site], grid, error)
        seen.inputs[site] = seen.inputs[site].divided(scales)
        if seen.routed is not None and "expert_up" in readers:
            seen.routed.rows.div_(scales)
        for name in readers:
            weights[name] = weights[name] * scales
        for name in (source, f"{source}.bias"):
            if name in weights:
                tensor = weights[name]
                weights[name] = tensor / (scales[:, None] if tensor.dim() > 1 else scales)
        changed.update((*readers, source, f"{source}.bias"))
    return changed


@dataclass(slots=True)
class Seen:
    """What calibration saw of a block: inputs by site, the matrices that read each, and what experts read."""

    inputs: dict[str, Inputs]
    readers: dict[str, list[str]]
    routed: Routed | None


def _is_expert(name: str) -> bool:
    return name.startswith("expert_")


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

    def figures(self) -> dict[str, float]:
        """Return how many experts too few rows chose to calibrate them, of a model that has any."""
        if not any(layer.experts for layer in self.config.layers):
            return {}
        return {"rare_experts": sum(self.rare.values())}

    def step(self, step: int, states: States) -> None:
        """Round and write a block; the states become its outputs."""
        weights, recipe = self.weights(step), self.recipe
        probes = states["calibration"][:_PROBES].clone() if recipe.method == "awq" else None
        block = WholeBlock(self.config, weights, step)
        inputs, routed = observe(block, states["calibration"])
        readers = {s: readers_of(self.config, step, block, weights, s) for s in inputs}
        seen = Seen(inputs, readers, routed)
        advance(block, states["held"])
        del block
        return_freed()
        changed: set[str] = set()
        if recipe.scales:
            changed = scale(self.config, weights, seen, recipe.grid, probes, step)
            return_freed()
        rounded = self._round_layer(step, weights, seen)
        return_freed()
        if len(states["rounded"]):
            values = {n: self.on_device(matrix.values()) for n, matrix in rounded.items()}
            advance(WholeBlock(self.config, weights | values, step), states["rounded"])
            del values
        self.write_block(step, {**weights, **rounded}, self._tensors, changed)

    def _round_layer(self, layer: int, weights: dict[str, Tensor], seen: Seen) -> dict[str, Codes]:
        """Take a layer's matrices out of its weights and round them, site by site and expert by expert."""
        names = matrices_of(self.config, layer)
        experts = self.config.layer(layer).experts
        total = sum(experts.num_experts if experts and _is_expert(n) else 1 for n in names)
        self._progress = count(1), total
        rounded: dict[str, Codes] = {}
        known = {name: site for site, readers in seen.readers.items() for name in readers}
        alone = {n: [n] for n in names if n not in known and not _is_expert(n)}
        for site, readers in {**seen.readers, **alone}.items():
            matrices = {n: weights.pop(n) for n in readers if n in names and not _is_expert(n)}
            inputs = seen.inputs.pop(site, None)
            for name, (codes, error) in self._round_site(matrices, inputs):
                rounded[name], self.errors[f"{layer}.{name}"] = codes, error
        if experts is not None:
            rounded |= self._round_experts(layer, weights, seen.routed, experts.num_experts)
        return rounded

    def _round_experts(
        self, layer: int, weights: dict[str, Tensor], routed: Routed | None, num_experts: int
    ) -> dict[str, Codes]:
        """Round each expert by the rows that chose it; to nearest those that too few did."""
        names = [name for name in weights if _is_expert(name)]
        parts = {name: weights.pop(name) for name in names}
        codes: dict[str, list[Codes]] = {name: [] for name in parts}
        errors: dict[str, list[float]] = {name: [] for name in parts}
        for expert in range(num_experts):
            own = {name: weight.chunk(num_experts)[expert] for name, weight in parts.items()}
            rows = None if routed is None else routed.of(expert)
            if rows is not None and len(rows) < FEW_ROWS:
                self.rare[str(layer)] = self.rare.get(str(layer), 0) + 1
                rows = None
            for name, (matrix, error) in self._round_expert(layer, own, rows):
                codes[name].append(matrix)
                errors[name].append(error)
        for name, of_each in errors.items():
            self.errors[f"{layer}.{name}"] = sum(of_each) / num_experts
        return {name: below_each_other(each) for name, each in codes.items()}

    def _round_expert(
        self, layer: int, own: dict[str, Tensor], rows: Tensor | None
    ) -> Iterator[tuple[str, tuple[Codes, float]]]:
        """Round the matrices of one expert, by rows (N, D), None: to nearest."""
        outer = inner = None
        if rows is not None:
            outer, inner = inputs_of(rows), inputs_of(self._widened(own, rows))
            if self.recipe.scales and hands_scales_on(self.config):
                scales = search_scales([own["expert_down"]], inner, self.recipe.grid)
                own["expert_down"] = own["expert_down"] * scales
                own["expert_up"] = own["expert_up"] / scales[:, None]
                inner = inner.divided(scales)
        down = {"expert_down": own.pop("expert_down")}
        yield from self._round_site(own, outer)
        yield from self._round_site(down, inner)

    def _widened(self, own: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Return what an expert's last matrix reads."""
        gate = rows @ own["expert_gate"].T if "expert_gate" in own else None
        return ops.activated(self.config.activation, rows @ own["expert_up"].T, gate)

    def _round_site(
        self, matrices: dict[str, Tensor], inputs: Inputs | None
    ) -> Iterator[tuple[str, tuple[Codes, float]]]:
        """Round matrices that read the same inputs, one after the other."""
        recipe, feedback = self.recipe, None
        if inputs is not None and recipe.feeds_back and matrices:
            feedback = Feedback.of(inputs.gram, inputs.num_tokens)
        while matrices:
            name = next(iter(matrices))
            exact = weight = matrices.pop(name)
            cuts = recipe.method == "awq" and recipe.clip and name not in _UNCLIPPED
            if inputs is not None and cuts:
                weight = clipped(weight, inputs, recipe.grid)
            yield name, self._round_matrix(weight, exact, inputs, feedback)
            done, total = self._progress
            self.on_matrix(next(done) / total)

    def _tensors(self, name: str, codes: Codes) -> dict[str, np.ndarray]:
        return tensors_of(name, codes, self.recipe.grid.bits, self.recipe.layout)

    def _round_matrix(
        self, weight: Tensor, exact: Tensor, inputs: Inputs | None, feedback: Feedback | None
    ) -> tuple[Codes, float]:
        grid = self.recipe.grid
        if inputs is None:
            codes = grid.round(weight)
            difference = (self.on_device(codes.values()) - weight).square().sum()
            return codes, float(difference / weight.square().sum().clamp(min=1e-30))
        if feedback is None:
            codes = grid.round(weight)
        else:
            scales, zeros = grid.ranges(weight)
            limits = (0, grid.top)
            codes = coded(compensated(weight, feedback, scales, zeros, limits), scales, zeros)
        error = inputs.error(self.on_device(codes.values()) - exact)
        return codes, error / max(inputs.error(exact), 1e-30)
