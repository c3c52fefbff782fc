"""FlattenQuant where each place that multiplies gets the bits it bears: first measure, then choose, then write.

The first pass rounds every site to 8 and to 4 bits, and for each of them carries a copy of some hidden states, with
that site alone rounded so, to the head: how far the model's distribution moves. Sites that move it least for the work
they are get 8 bits, then 4, until the sum of their divergences meets the bound. What is left, where one scale for all
inputs does not suit, keeps a scale for each group of inputs, in 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.lab.quantize.block import READERS, FlatBlock, WholeBlock, advance, input_widths
from forerun.lab.quantize.flatten_job import (
    WIDTHS,
    Flat,
    FlattenJob,
    FlattenRecipe,
    Key,
    site_sizes,
)
from forerun.lab.quantize.hf_layouts import FLAT_GROUP
from forerun.lab.quantize.job import States

_PROBES, _PROBE_TOKENS = 4, 64
"""Texts that ranges are not taken from: others have inputs of `down` many times as large, which are cut off."""


@dataclass(kw_only=True)
class FlattenChoice(FlattenJob):
    """One model, one recipe. Raises as QuantizeJob, and ConfigError for inputs that have no groups.

    Beside the others' states are those of the probes, `probes` (C, P, T, D): first those of the unrounded model, then
    those with one site flattened each, to 8 bits and to 4.
    """

    recipe: FlattenRecipe = field(default_factory=FlattenRecipe)

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = input_widths(self.config)
        if any(width % FLAT_GROUP for width in widths):
            raise ConfigError(
                f"a choice of bits needs inputs in groups of {FLAT_GROUP}, but this model has "
                f"{', '.join(map(str, sorted(widths)))}: give --bits 8"
            )

    def peak_nbytes(self) -> int:
        """Estimate from the sizes of a block, of the texts and of the probes."""
        texts = (*self.calibration[: self._num_read], *self.held, *self.held)
        probes = _carried(self.config.num_layers) * _PROBES * _PROBE_TOKENS
        return self.peak_of(sum(map(len, texts)) + probes)

    def begin(self, calibration: Tensor, held: Tensor) -> States:
        """Hold some of the calibration texts back for probes, where there are more of them."""
        probes = calibration[-_PROBES:, :_PROBE_TOKENS][None].clone()
        return super().begin(calibration[: self._num_read].clone(), held) | {"probes": probes}

    @property
    def _num_read(self) -> int:
        """Calibration texts that ranges are taken from."""
        num = len(self.calibration)
        return num - _PROBES if num > _PROBES else num

    def tried(self) -> tuple[int, ...]:
        """Return both widths."""
        return WIDTHS

    def step(self, step: int, states: States) -> None:
        """Measure a block, or write it."""
        super().step(step, states)
        if step == self.config.num_layers - 1:
            moved = self.outside.divergence(states["probes"]).tolist()
            self.divergences = dict(zip(self.errors, moved, strict=True))
            states["probes"] = states["probes"][:0]

    def saved(self, done: int, states: States) -> States:
        """Leave out the room for probes to come."""
        return states | {"probes": states["probes"][: _carried(done)]}

    def round_sites(
        self, layer: int, weights: Mapping[str, Tensor], states: States
    ) -> Iterator[tuple[int, Flat]]:
        """Carry the probes through the block besides."""
        states["probes"] = probes = self._with_room(states["probes"])
        before, carried = probes[0].clone(), _carried(layer)
        block = WholeBlock(self.config, weights)
        for copy in probes[:carried]:
            advance(block, copy)
        for bits, flat in super().round_sites(layer, weights, states):
            probes[carried] = before
            advance(FlatBlock(self.config, weights, flat), probes[carried])
            carried += 1
            yield bits, flat

    def _with_room(self, probes: Tensor) -> Tensor:
        """Return probes with room for those to come, made once: they are most of the memory."""
        num_copies = _carried(self.config.num_layers)
        if len(probes) == num_copies:
            return probes
        whole = torch.zeros(num_copies, *probes.shape[1:])
        whole[: len(probes)] = probes
        return whole

    def widths(self) -> Mapping[Key, int | None]:
        """Choose the bits of each site by what it costs for its work."""
        keys, sizes = self.keys(), site_sizes(self.config)
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


def _carried(layer: int) -> int:
    """Copies of the probes that a block reads: the unrounded one, and one for each width of each site before it."""
    return 1 + len(WIDTHS) * len(READERS) * layer
