"""FlattenQuant of a model, block by block, into a Hugging Face folder: first measure, then choose, then write.

The first pass rounds every place where a block multiplies (a site) to 4 and to 8 bits, and carries a copy of some
hidden states for each site, with that site alone in 4 bits, to the head: how far the model's distribution moves. Sites
that move it least for the work they are get 4 bits, until the sum of their divergences meets the bound. The second pass
writes them, while held-out texts run through the chosen blocks and through those of 8 bits.
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
from forerun.lab.quantize import tensor_file
from forerun.lab.quantize.block import READERS, FlatBlock, Site, WholeBlock, advance, observe
from forerun.lab.quantize.flatten import product_error, round_weights, search_rows
from forerun.lab.quantize.hf_layouts import flat_config
from forerun.lab.quantize.job import QuantizeJob, States, wants_text
from forerun.lab.quantize.memory import flatten_nbytes
from forerun.model.config import ModelConfig, weight_shapes
from forerun.weights.codes import Codes
from forerun.weights.flat import FlatRows, Split, num_places

WIDTHS = (8, 4)
_PROBES, _PROBE_TOKENS = 2, 96

Bits = Literal[4, 8] | None
"""Of all sites, None for a choice per site."""
Key = tuple[int, Site]


@dataclass(frozen=True, slots=True)
class FlattenRecipe:
    """How to flatten: bits, bits of the rows where weights have 4, the split, how much wider rows may become.

    `bound` is the divergence, in nats, that sites of 4 bits may add up to; `gptq`: their columns make up for others.
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

    Beside the others' states are those of the held-out text with all sites in 8 bits (`eight`), and of the probes,
    `probes` (C, P, T, D): first those of the unrounded model, then those with one site in 4 bits each.
    """

    recipe: FlattenRecipe = field(default_factory=FlattenRecipe)

    passes = 2
    """Blocks are measured, then written."""

    def __post_init__(self) -> None:
        wants_text("flatten", self.calibration)
        super().__post_init__()

    def peak_nbytes(self) -> int:
        """Estimate from the sizes of a block, of the texts and of the probes."""
        texts = (*self.calibration, *self.held, *self.held, *self.held)
        probes = _carried(self.config.num_layers) if self.recipe.bits is None else 1
        num_tokens = sum(map(len, texts)) + probes * _PROBES * _PROBE_TOKENS
        return flatten_nbytes(self.config, num_tokens=num_tokens, length=max(map(len, texts)))

    def begin(self, calibration: Tensor, held: Tensor) -> States:
        """Take some of the calibration text for probes."""
        return {
            "calibration": calibration,
            "held": held,
            "rounded": held.clone(),
            "eight": held.clone() if self.recipe.bits is None else held[:0].clone(),
            "probes": calibration[:_PROBES, :_PROBE_TOKENS][None].clone(),
        }

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
                if bits == 4 and self.recipe.bits is None:
                    probes[carried] = before
                    advance(FlatBlock(self.config, weights, flat), probes[carried])
                    carried += 1
                del rows, parts, flat
                return_freed()
        tensor_file.write(self.partial / _candidates(layer), _packed(kept))

    def _with_room(self, probes: Tensor) -> Tensor:
        """Return probes with room for those to come, made once: they are most of the memory."""
        num = 1 if self.recipe.bits is not None else _carried(self.config.num_layers)
        if len(probes) == num:
            return probes
        whole = torch.zeros(num, *probes.shape[1:])
        whole[: len(probes)] = probes
        return whole

    def _diverge(self, states: States) -> None:
        """From the probes, how far each site in 4 bits moves the model."""
        if self.recipe.bits is not None:
            return
        moved = self.outside.divergence(states["probes"]).tolist()
        keys = [(i, site) for i in range(self.config.num_layers) for site in READERS]
        self.divergences = {f"{i}.{s}": kl for (i, s), kl in zip(keys, moved, strict=True)}
        states["probes"] = states["probes"][:0]

    # --- the choice ---

    def widths(self) -> dict[Key, int]:
        """The bits of each site."""
        keys: list[Key] = [(i, s) for i in range(self.config.num_layers) for s in READERS]
        if self.recipe.bits is not None:
            return dict.fromkeys(keys, self.recipe.bits)
        sizes = site_sizes(self.config)
        cost = {key: max(0.0, self.divergences[f"{key[0]}.{key[1]}"]) for key in keys}
        chosen, left = dict.fromkeys(keys, 8), self.recipe.bound
        for key in sorted(keys, key=lambda key: cost[key] / sizes[key[1]]):
            if cost[key] <= left:
                chosen[key], left = 4, left - cost[key]
        return chosen

    def figures(self) -> dict[str, float]:
        """Return of multiplications the share in 4 bits. Widening; bytes of fp16 weights over those of the codes."""
        widths, sizes = self.widths(), site_sizes(self.config)
        work, four, nbytes, total = 0.0, 0.0, 0.0, 0.0
        for (layer, site), bits in widths.items():
            wide = sizes[site] * self._widening(layer, site, bits)
            work, total = work + wide, total + sizes[site]
            nbytes += wide * bits / 8
            four += wide if bits == 4 else 0
        return {
            "share_4bit": four / work,
            "widening": work / total,
            "fp16_over_codes": 2 * total / nbytes,
        }

    def _widening(self, layer: int, site: Site, bits: int) -> float:
        """How many times as wide a site's rows became."""
        with safetensors.safe_open(self.partial / _candidates(layer), framework="np") as file:
            pieces = file.get_tensor(f"{bits}.{READERS[site][-1]}.pieces")
        return num_places(pieces) / len(pieces)

    # --- the second pass ---

    def _emit(self, layer: int, states: States) -> None:
        """Write a block as chosen, and carry the held-out texts through it."""
        weights, widths = self.weights(layer), self.widths()
        flat = self._flat(layer, {site: widths[layer, site] for site in READERS})
        advance(WholeBlock(self.config, weights), states["held"])
        advance(FlatBlock(self.config, weights, flat), states["rounded"])
        if len(states["eight"]):
            eight = self._flat(layer, dict.fromkeys(READERS, 8))
            advance(FlatBlock(self.config, weights, eight), states["eight"])
        self.write_block(layer, {**weights, **flat})

    def _flat(self, layer: int, bits_of: Mapping[Site, int]) -> dict[str, Codes]:
        """The rounded matrices of some sites."""
        path = self.partial / _candidates(layer)
        with safetensors.safe_open(path, framework="pt") as file:
            names = {key.rpartition(".")[0] for key in file.keys()}  # noqa: SIM118
            found = {}
            for site, bits in bits_of.items():
                for name in READERS[site]:
                    start = f"{bits}.{name}"
                    if start in names:
                        found[name] = _unpacked(file, start, self.recipe.split)
        return found


def _carried(layer: int) -> int:
    """Copies of the probes that a block reads: the unrounded one, and one for each site before it."""
    return 1 + len(READERS) * layer


def site_sizes(config: ModelConfig) -> dict[Site, int]:
    """Weights that are multiplied at each site of a block."""
    shapes = weight_shapes(config)
    return {
        site: sum(math.prod(shapes.get(f"layers.0.{name}", (0,))) for name in readers)
        for site, readers in READERS.items()
    }


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
