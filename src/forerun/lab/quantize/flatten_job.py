"""FlattenQuant with as many bits for each site (the matrices of one input) as it bears: measure, choose, write.

The first pass rounds every site to 8 and to 4 bits, by inputs of the unrounded blocks before it, and for each of them
carries a copy of some hidden states, with that site alone rounded so, to the head: how far the model's distribution
moves. Sites that move it least for the work they are get 8 bits, then such sites 4, until the sum of their divergences
meets the bound. What is left keeps a scale for each group of inputs, in 8 bits. The second pass writes them, while a
held-out text runs through the blocks before and after. Embedding and head get 8 bits a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import safetensors
import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.lab.quantize import tensor_file
from forerun.lab.quantize.block import (
    MATRICES,
    READERS,
    FlatBlock,
    Site,
    WholeBlock,
    advance,
    input_widths,
    need_plain,
    observe,
)
from forerun.lab.quantize.flatten import (
    Kind,
    product_error,
    round_weights,
    search_rows,
)
from forerun.lab.quantize.grid import Grid
from forerun.lab.quantize.hf_layouts import FLAT_GROUP, flat_config, tensors_of
from forerun.lab.quantize.job import QuantizeJob, States, wants_text
from forerun.lab.quantize.memory import flatten_nbytes
from forerun.model.config import ModelConfig
from forerun.model.shapes import weight_shapes
from forerun.system.device import return_freed
from forerun.weights.codes import Codes
from forerun.weights.flat import FlatRows, num_columns

WIDTHS = (8, 4)
GROUPS = Grid(8, FLAT_GROUP)
"""Of sites that are not flattened: their rounding is small beside what the bound measures."""

_PROBES, _PROBE_TOKENS = 4, 64
"""Texts that ranges are not taken from: others have inputs of `down` many times as large, which are cut off."""
_SAMPLED = 2
"""One of so many of their tokens shows whether inputs bear one range for all rows."""

Key = tuple[int, Site]


@dataclass(kw_only=True)
class FlattenJob(QuantizeJob):
    """One model. Raises as QuantizeJob, and ConfigError for inputs that have no groups.

    Beside the others' states are those of the probes, `probes` (C, P, T, D): first those of the unrounded model, then
    those with one site flattened each, to 8 bits and to 4.
    """

    bound: float = 0.02
    """The divergence, in nats, that flattened sites may add up to."""
    max_widening: float = 0.05
    """How much wider rows may become."""
    kinds: Sequence[Kind] = ("row",)
    """Whose scale inputs may be rounded by; what errs least is taken."""

    passes = 2
    """Blocks are rounded, then written."""
    rounds_outside = True

    def __post_init__(self) -> None:
        wants_text("flatten", self.calibration)
        super().__post_init__()
        need_plain(self.config, "method flatten")
        widths = input_widths(self.config)
        if any(width % FLAT_GROUP for width in widths):
            raise ConfigError(
                f"flatten needs inputs in groups of {FLAT_GROUP}, but this model has "
                f"{', '.join(map(str, sorted(widths)))}: choose another --method"
            )

    def peak_nbytes(self) -> int:
        """Estimate from the sizes of a block, of the texts and of the probes."""
        texts = (*self.calibration[: self._num_read], *self.held_out, *self.held_out)
        probes = _carried(self.config.num_layers) * _PROBES * _PROBE_TOKENS
        length = max(map(len, (*self.calibration, *self.held_out)))
        return flatten_nbytes(self.config, num_tokens=sum(map(len, texts)) + probes, length=length)

    def begin(self, calibration: Tensor, held_out: Tensor) -> States:
        """Hold some of the calibration texts back for probes, where there are more of them."""
        return {
            "calibration": calibration[: self._num_read].clone(),
            "held": held_out,
            "rounded": self.outside.embed(self.held_out, is_rounded=True),
            "probes": calibration[-_PROBES:, :_PROBE_TOKENS][None].clone(),
        }

    @property
    def _num_read(self) -> int:
        """Calibration texts that ranges are taken from."""
        num = len(self.calibration)
        return num - _PROBES if num > _PROBES else num

    def step(self, step: int, states: States) -> None:
        """Round and measure a block, or write it."""
        layer = step % self.config.num_layers
        if step >= self.config.num_layers:
            self._emit(layer, states)
            return
        self._round(layer, states)
        if layer == self.config.num_layers - 1:
            moved = self.outside.divergence(states["probes"]).tolist()
            self.divergences = dict(zip(self.errors, moved, strict=True))
            states["probes"] = states["probes"][:0]

    def saved(self, done: int, states: States) -> States:
        """Leave out the probes that are not computed yet."""
        return states | {"probes": states["probes"][: _carried(done)]}

    def quantization(self, left_alone: list[str]) -> Mapping[str, object]:
        """Return the quantization config: how inputs are split, and what is not flattened."""
        return flat_config()

    # --- the first pass ---

    def _round(self, layer: int, states: States) -> None:
        """Round a block's sites, and keep the codes until it is written; the probes go through it besides."""
        candidates: dict[str, Codes] = {}
        weights = self.weights(layer)
        states["probes"] = probes = self._allocated(states["probes"])
        before, carried = probes[0].clone(), _carried(layer)
        block = WholeBlock(self.config, weights)
        for copy in probes[:carried]:
            advance(block, copy)
        for bits, flat in self._round_sites(layer, weights, states, before):
            probes[carried] = before
            advance(FlatBlock(self.config, weights, flat), probes[carried])
            carried += 1
            candidates |= {f"{bits}.{name}": codes for name, codes in flat.items()}
            del flat
            return_freed()
        tensor_file.write(self.partial / _candidates(layer), _packed(candidates))

    def _round_sites(
        self, layer: int, weights: Mapping[str, Tensor], states: States, probes: Tensor
    ) -> Iterator[tuple[int, dict[str, Codes]]]:
        """Round each site to both widths; yields the bits and the matrices. States become the outputs.

        `probes` (P, T, D) are the block's inputs of texts that ranges are not taken from.
        """
        block = WholeBlock(self.config, weights)
        seen, _ = observe(block, states["calibration"])
        for site, sample in _rows_of(block, probes).items():
            seen[site] = replace(seen[site], sample=sample)
        num_rounded, num_matrices = 0, len(WIDTHS) * sum(name in weights for name in MATRICES)
        for site, readers in READERS.items():
            names = [name for name in readers if name in weights]
            matrices = [weights[name] for name in names]
            for bits in WIDTHS:
                rows = search_rows(
                    seen[site],
                    torch.cat(matrices),
                    bits=bits,
                    max_widening=self.max_widening,
                    kinds=self.kinds,
                )
                parts = round_weights(matrices, seen[site], rows, bits)
                self.errors[f"{layer}.{site}.{bits}"] = product_error(matrices, parts, seen[site])
                num_rounded += len(matrices)
                self.on_matrix(num_rounded / num_matrices)
                yield bits, dict(zip(names, parts, strict=True))

    def _allocated(self, probes: Tensor) -> Tensor:
        """Return the probes in memory for all of them, which is allocated once: they are most of it."""
        num_copies = _carried(self.config.num_layers)
        if len(probes) == num_copies:
            return probes
        all_probes = torch.zeros(num_copies, *probes.shape[1:])
        all_probes[: len(probes)] = probes
        return all_probes

    # --- what comes of it ---

    def widths(self) -> Mapping[Key, int | None]:
        """Choose the bits of each site by what it costs for its work; None: it is not flattened."""
        sizes = site_sizes(self.config)
        keys = [(layer, site) for layer in range(self.config.num_layers) for site in READERS]
        moved = {
            (key, bits): max(0.0, self.divergences[f"{key[0]}.{key[1]}.{bits}"])
            for key in keys
            for bits in WIDTHS
        }
        chosen: dict[Key, int | None] = dict.fromkeys(keys)
        cost = dict.fromkeys(keys, 0.0)
        # 8 bits first: what keeps groups is slower, too.
        by_cost = sorted(moved, key=lambda each: (-each[1], moved[each] / sizes[each[0][1]]))
        for key, bits in by_cost:
            others = sum(cost.values()) - cost[key]
            if chosen[key] != WIDTHS[-1] and others + moved[key, bits] <= self.bound:
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
        return num_columns(pieces) / len(pieces)

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
        matrices = {}
        with safetensors.safe_open(self.partial / _candidates(layer), framework="pt") as file:
            for site, bits in bits_of.items():
                for name in READERS[site]:
                    if name in weights and bits is None:
                        matrices[name] = GROUPS.round(weights[name])
                    elif name in weights:
                        matrices[name] = _unpacked(file, f"{bits}.{name}")
        return matrices


def site_sizes(config: ModelConfig) -> dict[Site, int]:
    """Count the weights that are multiplied at each site of a block."""
    shapes = weight_shapes(config)
    return {
        site: sum(math.prod(shapes.get(f"layers.0.{name}", (0,))) for name in readers)
        for site, readers in READERS.items()
    }


def _rows_of(block: WholeBlock, texts: Tensor) -> dict[str, Tensor]:
    """Return some of what a block's sites read of texts (P, T, D)."""
    read = [block(text)[1] for text in texts]
    return {site: torch.cat([each[site][::_SAMPLED] for each in read]) for site in READERS}


def _carried(layer: int) -> int:
    """Copies of the probes that a block reads: the unrounded one, and one for each width of each site before it."""
    return 1 + len(WIDTHS) * len(READERS) * layer


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
        arrays |= {"steps": rows.steps, "pieces": rows.pieces}
        arrays |= {
            "limit": np.array([rows.limit]),
            "hadamard": np.array([rows.uses_hadamard], np.uint8),
        }
        tensors |= {f"{name}.{part}": array for part, array in arrays.items()}
    return tensors


def _unpacked(file: safetensors.safe_open, name: str) -> Codes:
    codes, scales, steps, pieces, limit, uses_hadamard = (
        file.get_tensor(f"{name}.{part}").numpy()
        for part in ("codes", "scales", "steps", "pieces", "limit", "hadamard")
    )
    rows = FlatRows(steps, pieces, int(limit[0]), bool(uses_hadamard[0]))
    return Codes(codes, scales, flat=rows)
