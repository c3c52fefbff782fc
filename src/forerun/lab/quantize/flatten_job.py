"""FlattenQuant of a model, block by block, into a Hugging Face folder: first measure, then choose, then write.

The first pass rounds every place where a block multiplies (a site) to 8 and to 4 bits, and for each of them carries a
copy of some hidden states, with that site alone rounded so, to the head: how far the model's distribution moves. Sites
that move it least for the work they are get 8 bits, then 4, until the sum of their divergences meets the bound. What is
left, where one scale for all inputs does not suit, keeps a scale for each group of inputs, in 8 bits. The second pass
writes them, while a held-out text runs through the blocks before and after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import safetensors
import torch
from torch import Tensor

from forerun.core.device import return_freed
from forerun.core.errors import ConfigError
from forerun.lab.quantize import tensor_file
from forerun.lab.quantize.block import (
    READERS,
    FlatBlock,
    Site,
    WholeBlock,
    advance,
    input_widths,
    observe,
)
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
_PROBES, _PROBE_TOKENS = 4, 64
"""Texts that ranges are not taken from: others have inputs of `down` many times as large, which are cut off."""

Bits = Literal[4, 8] | None
"""Of all sites, None for a choice per site."""
Key = tuple[int, Site]


@dataclass(frozen=True, slots=True)
class FlattenRecipe:
    """How to flatten: bits, bits of the rows where weights have 4, the split, how much wider rows may become.

    `bound` is the divergence, in nats, that flattened sites may add up to; `gptq`: where weights have 4 bits, columns
    make up for others.
    """

    bits: Bits = None
    row_bits: int = 8
    split: Split = "spill"
    widen: float = 0.05
    bound: float = 0.01
    gptq: bool = True

    def job(self, **given: Any) -> FlattenJob:
        """Return the job that flattens so."""
        return FlattenJob(recipe=self, **given)

    def described(self) -> dict[str, object]:
        """Return what the report says of it."""
        shown: dict[str, object] = {"method": "flatten", "bits": self.bits or "4 or 8"}
        shown |= {"split": self.split, "row-bits": self.row_bits}
        return shown | ({"gptq": "on"} if self.gptq else {})

    def widths(self) -> tuple[int, ...]:
        """The bits that sites are tried with."""
        return WIDTHS if self.bits is None else (self.bits,)


@dataclass(kw_only=True)
class FlattenJob(QuantizeJob):
    """One model, one recipe. Raises as QuantizeJob.

    Beside the others' states are those of the probes, `probes` (C, P, T, D): first those of the unrounded model, then
    those with one site flattened each, to 8 bits and to 4.
    """

    recipe: FlattenRecipe = field(default_factory=FlattenRecipe)

    passes = 2
    """Blocks are measured, then written."""

    def __post_init__(self) -> None:
        wants_text("flatten", self.calibration)
        super().__post_init__()
        widths = input_widths(self.config)
        if self.recipe.bits is None and any(width % FLAT_GROUP for width in widths):
            raise ConfigError(
                f"a choice of bits needs inputs in groups of {FLAT_GROUP}, but this model has "
                f"{', '.join(map(str, sorted(widths)))}: give --bits 8"
            )

    def peak_nbytes(self) -> int:
        """Estimate from the sizes of a block, of the texts and of the probes."""
        texts = (*self.calibration[: self._num_read], *self.held, *self.held)
        num_tokens = sum(map(len, texts)) + self._num_copies * _PROBES * _PROBE_TOKENS
        return flatten_nbytes(self.config, num_tokens=num_tokens, length=max(map(len, texts)))

    def begin(self, calibration: Tensor, held: Tensor) -> States:
        """Hold some of the calibration texts back for probes, where there are more of them."""
        return {
            "calibration": calibration[: self._num_read].clone(),
            "probes": calibration[-_PROBES:, :_PROBE_TOKENS][None].clone(),
            "held": held,
            "rounded": held.clone(),
        }

    @property
    def _num_read(self) -> int:
        """Calibration texts that ranges are taken from."""
        num = len(self.calibration)
        return num - _PROBES if self.recipe.bits is None and num > _PROBES else num

    @property
    def _num_copies(self) -> int:
        """Copies of the probes in the end."""
        return _carried(self.config.num_layers) if self.recipe.bits is None else 1

    def step(self, step: int, states: States) -> None:
        """Measure a block, or write it."""
        layer = step % self.config.num_layers
        if step >= self.config.num_layers:
            self._emit(layer, states)
            return
        self._measure(layer, states)
        if layer == self.config.num_layers - 1:
            self._diverge(states)

    def saved(self, done: int, states: States) -> States:
        """Leave out the room for probes to come."""
        return states | {"probes": states["probes"][: _carried(done)]}

    def quantization(self, left_alone: list[str]) -> Mapping[str, object]:
        """Describe the split."""
        return flat_config(self.recipe.split, left_alone)

    # --- the first pass ---

    def _measure(self, layer: int, states: States) -> None:
        """Round a block's sites to all widths, and carry the probes through it."""
        weights = self.weights(layer)
        block = WholeBlock(self.config, weights)
        seen = observe(block, states["calibration"])
        states["probes"] = probes = self._with_room(states["probes"])
        before, carried = probes[0].clone(), _carried(layer)
        for copy in probes[:carried]:
            advance(block, copy)
        kept: dict[str, Codes] = {}
        num_rounded, widths = 0, self.recipe.widths()
        num_matrices = len(widths) * sum(n in weights for ns in READERS.values() for n in ns)
        for site, readers in READERS.items():
            names = [name for name in readers if name in weights]
            matrices = [weights[name] for name in names]
            for bits in widths:
                rows = search_rows(
                    seen[site],
                    torch.cat(matrices),
                    bits=bits,
                    row_bits=self.recipe.row_bits if bits == 4 else 8,
                    split=self.recipe.split,
                    widen=self.recipe.widen,
                )
                parts = round_weights(
                    matrices,
                    seen[site],
                    rows,
                    bits,
                    compensate=self.recipe.gptq and bits == 4,
                )
                self.errors[f"{layer}.{site}.{bits}"] = product_error(matrices, parts, seen[site])
                num_rounded += len(matrices)
                self.on_matrix(num_rounded / num_matrices)
                flat = dict(zip(names, parts, strict=True))
                kept |= {f"{bits}.{name}": each for name, each in flat.items()}
                if self.recipe.bits is None:
                    probes[carried] = before
                    advance(FlatBlock(self.config, weights, flat), probes[carried])
                    carried += 1
                del rows, parts, flat
                return_freed()
        tensor_file.write(self.partial / _candidates(layer), _packed(kept))

    def _with_room(self, probes: Tensor) -> Tensor:
        """Return probes with room for those to come, made once: they are most of the memory."""
        if len(probes) == self._num_copies:
            return probes
        whole = torch.zeros(self._num_copies, *probes.shape[1:])
        whole[: len(probes)] = probes
        return whole

    def _diverge(self, states: States) -> None:
        """From the probes, how far each site in 8 and in 4 bits moves the model."""
        if self.recipe.bits is not None:
            return
        moved = self.outside.divergence(states["probes"]).tolist()
        self.divergences = dict(zip(self.errors, moved, strict=True))
        states["probes"] = states["probes"][:0]

    # --- the choice ---

    def widths(self) -> dict[Key, int | None]:
        """Return the bits of each site; None: it is not flattened."""
        keys: list[Key] = [(i, s) for i in range(self.config.num_layers) for s in READERS]
        if self.recipe.bits is not None:
            return dict.fromkeys(keys, self.recipe.bits)
        sizes = site_sizes(self.config)
        moved = {
            (key, bits): max(0.0, self.divergences[f"{key[0]}.{key[1]}.{bits}"])
            for key in keys
            for bits in WIDTHS
        }
        chosen: dict[Key, int | None] = dict.fromkeys(keys)
        cost = dict.fromkeys(keys, 0.0)
        for key, bits in sorted(moved, key=lambda each: moved[each] / sizes[each[0][1]]):
            others = sum(cost.values()) - cost[key]
            if chosen[key] != WIDTHS[-1] and others + moved[key, bits] <= self.recipe.bound:
                chosen[key], cost[key] = bits, moved[key, bits]
        return chosen

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


def _carried(layer: int) -> int:
    """Copies of the probes that a block reads: the unrounded one, and one for each width of each site before it."""
    return 1 + len(WIDTHS) * len(READERS) * layer


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
