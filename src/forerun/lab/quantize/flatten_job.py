"""FlattenQuant of a model, block by block, into a Hugging Face folder: first round, then write.

The first pass rounds every place where a block multiplies (a site), by inputs of the unrounded blocks before it. The
second pass writes them, while a held-out text runs through the blocks before and after. Here all sites have the same
bits; `flatten_choice.py` tries both and chooses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import safetensors
import torch
from torch import Tensor

from forerun.core.device import return_freed
from forerun.lab.quantize import tensor_file
from forerun.lab.quantize.block import READERS, FlatBlock, Site, WholeBlock, advance, observe
from forerun.lab.quantize.flatten import product_error, round_weights, search_rows
from forerun.lab.quantize.grid import Grid
from forerun.lab.quantize.hf_layouts import FLAT_GROUP, flat_config, tensors_of
from forerun.lab.quantize.job import QuantizeJob, States, wants_text
from forerun.lab.quantize.memory import flatten_nbytes
from forerun.model.config import ModelConfig, weight_shapes
from forerun.weights.codes import Codes
from forerun.weights.flat import FlatRows, Split, num_places

WIDTHS = (8, 4)
GROUPS = Grid(8, FLAT_GROUP)
"""Of sites that are not flattened: their rounding is small beside what the bound measures."""

Key = tuple[int, Site]
Flat = dict[str, Codes]
"""The matrices of a site, flattened."""


@dataclass(frozen=True, slots=True)
class FlattenRecipe:
    """How to flatten: bits, bits of the rows where weights have 4, the split, how much wider rows may become.

    `bound` is the divergence, in nats, that flattened sites may add up to; `gptq`: where weights have 4 bits, columns
    make up for others.
    """

    bits: Literal[4, 8] | None = None
    """Of all sites, None for a choice per site."""
    row_bits: int = 8
    split: Split = "spill"
    widen: float = 0.05
    bound: float = 0.01
    gptq: bool = True

    def described(self) -> dict[str, object]:
        """Return what the report says of it."""
        shown: dict[str, object] = {"method": "flatten", "bits": self.bits or "4 or 8"}
        shown |= {"split": self.split, "row-bits": self.row_bits}
        return shown | ({"gptq": "on"} if self.gptq else {})


@dataclass(kw_only=True)
class FlattenJob(QuantizeJob):
    """One model, one recipe. Raises as QuantizeJob."""

    recipe: FlattenRecipe

    passes = 2
    """Blocks are rounded, then written."""

    def __post_init__(self) -> None:
        wants_text("flatten", self.calibration)
        super().__post_init__()

    def peak_nbytes(self) -> int:
        """Estimate from the sizes of a block and of the texts."""
        texts = (*self.calibration, *self.held, *self.held)
        return self.peak_of(sum(map(len, texts)))

    def peak_of(self, num_tokens: int) -> int:
        """Estimate for so many tokens whose states are held."""
        length = max(map(len, (*self.calibration, *self.held)))
        return flatten_nbytes(self.config, num_tokens=num_tokens, length=length)

    def begin(self, calibration: Tensor, held: Tensor) -> States:
        """Keep the held-out text twice."""
        return {"calibration": calibration, "held": held, "rounded": held.clone()}

    def step(self, step: int, states: States) -> None:
        """Round a block, or write it."""
        layer = step % self.config.num_layers
        if step < self.config.num_layers:
            self._round(layer, states)
        else:
            self._emit(layer, states)

    def quantization(self, left_alone: list[str]) -> Mapping[str, object]:
        """Describe the split."""
        return flat_config(self.recipe.split, left_alone)

    def tried(self) -> tuple[int, ...]:
        """Return the bits that each site is rounded to in the first pass."""
        assert self.recipe.bits is not None, "FlattenChoice chooses"
        return (self.recipe.bits,)

    def widths(self) -> Mapping[Key, int | None]:
        """Return the bits that each site is written with; None: it is not flattened."""
        return dict.fromkeys(self.keys(), self.recipe.bits)

    def keys(self) -> list[Key]:
        """List the sites of all blocks."""
        return [(layer, site) for layer in range(self.config.num_layers) for site in READERS]

    # --- the first pass ---

    def _round(self, layer: int, states: States) -> None:
        """Round a block's sites, and keep the codes until it is written."""
        kept: Flat = {}
        for bits, flat in self.round_sites(layer, self.weights(layer), states):
            kept |= {f"{bits}.{name}": codes for name, codes in flat.items()}
            del flat
            return_freed()
        tensor_file.write(self.partial / _candidates(layer), _packed(kept))

    def round_sites(
        self, layer: int, weights: Mapping[str, Tensor], states: States
    ) -> Iterator[tuple[int, Flat]]:
        """Round each site to the bits that are tried; yields the bits and the matrices. States become the outputs."""
        seen = observe(WholeBlock(self.config, weights), states["calibration"])
        tried, recipe, num_rounded = self.tried(), self.recipe, 0
        num_matrices = len(tried) * sum(n in weights for ns in READERS.values() for n in ns)
        for site, readers in READERS.items():
            names = [name for name in readers if name in weights]
            matrices = [weights[name] for name in names]
            for bits in tried:
                rows = search_rows(
                    seen[site],
                    torch.cat(matrices),
                    bits=bits,
                    row_bits=recipe.row_bits if bits == 4 else 8,
                    split=recipe.split,
                    widen=recipe.widen,
                )
                compensate = recipe.gptq and bits == 4
                parts = round_weights(matrices, seen[site], rows, bits, compensate=compensate)
                self.errors[f"{layer}.{site}.{bits}"] = product_error(matrices, parts, seen[site])
                num_rounded += len(matrices)
                self.on_matrix(num_rounded / num_matrices)
                yield bits, dict(zip(names, parts, strict=True))

    # --- what comes of it ---

    def figures(self) -> dict[str, float]:
        """Return shares of multiplications in 4 and in 8 bits, the widening, bytes in fp16 over those of the codes."""
        widths, sizes = self.widths(), site_sizes(self.config)
        work: dict[int | None, float] = dict.fromkeys((*WIDTHS, None), 0.0)
        for (layer, site), bits in widths.items():
            work[bits] += sizes[site] * self._widening(layer, site, bits)
        total, wide = sum(sizes[site] for _, site in widths), sum(work.values())
        in_groups = 8 + 16 / FLAT_GROUP
        num_bits = sum(share * (bits or in_groups) for bits, share in work.items())
        return {
            "share_4bit": work[4] / wide,
            "share_8bit": work[8] / wide,
            "widening": wide / total,
            "fp16_over_codes": 16 * total / num_bits,
        }

    def _widening(self, layer: int, site: Site, bits: int | None) -> float:
        """How many times as wide a site's rows became."""
        if bits is None:
            return 1.0
        with safetensors.safe_open(self.partial / _candidates(layer), framework="np") as file:
            pieces = file.get_tensor(f"{bits}.{READERS[site][-1]}.pieces")
        return num_places(pieces) / len(pieces)

    # --- the second pass ---

    def _emit(self, layer: int, states: States) -> None:
        """Write a block as chosen, and carry the held-out texts through it."""
        weights, widths = self.weights(layer), self.widths()
        rounded = self._rounded(layer, weights, {site: widths[layer, site] for site in READERS})
        advance(WholeBlock(self.config, weights), states["held"])
        advance(FlatBlock(self.config, weights, rounded), states["rounded"])
        self.write_block(layer, {**weights, **rounded}, _in_groups)

    def _rounded(
        self, layer: int, weights: Mapping[str, Tensor], bits_of: Mapping[Site, int | None]
    ) -> dict[str, Codes]:
        """The rounded matrices of a block."""
        found = {}
        with safetensors.safe_open(self.partial / _candidates(layer), framework="pt") as file:
            for site, bits in bits_of.items():
                for name in READERS[site]:
                    if name in weights and bits is None:
                        found[name] = GROUPS.round(weights[name])
                    elif name in weights:
                        found[name] = _unpacked(file, f"{bits}.{name}", self.recipe.split)
        return found


def site_sizes(config: ModelConfig) -> dict[Site, int]:
    """Weights that are multiplied at each site of a block."""
    shapes = weight_shapes(config)
    return {
        site: sum(math.prod(shapes.get(f"layers.0.{name}", (0,))) for name in readers)
        for site, readers in READERS.items()
    }


def _in_groups(name: str, codes: Codes) -> dict[str, np.ndarray]:
    return tensors_of(name, codes, GROUPS.bits, "compressed-tensors")


def _candidates(layer: int) -> str:
    return f"candidates-{layer:05}.safetensors"


def _packed(flat: Mapping[str, Codes]) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for name, codes in flat.items():
        rows = codes.flat
        assert rows is not None
        arrays: dict[str, np.ndarray] = {"codes": codes.codes, "scales": codes.scales}
        arrays |= {"steps": rows.steps, "pieces": rows.pieces, "limit": np.array([rows.limit])}
        tensors |= {f"{name}.{part}": array for part, array in arrays.items()}
    return tensors


def _unpacked(file: safetensors.safe_open, name: str, split: Split) -> Codes:
    codes, scales, steps, pieces, limit = (
        file.get_tensor(f"{name}.{part}").numpy()
        for part in ("codes", "scales", "steps", "pieces", "limit")
    )
    return Codes(codes, scales, flat=FlatRows(steps, pieces, int(limit[0]), split))
