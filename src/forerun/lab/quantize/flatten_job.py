"""FlattenQuant of a model, block by block, into a Hugging Face folder: first measure, then choose, then write.

The first pass rounds every place where a block multiplies (a site) to 4 and to 8 bits, and carries a copy of some
hidden states for each site, with that site alone in 4 bits, to the head: how far the model's distribution moves. Sites
that move it least for the work they are get 4 bits, until the sum of their divergences meets the bound. The second pass
writes them, while held-out texts run through the chosen blocks and through those of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import safetensors
import torch
from torch import Tensor

from forerun.core.device import return_freed
from forerun.core.errors import ConfigError
from forerun.lab.quantize.flat_block import FlatBlock, observe
from forerun.lab.quantize.flatten import product_error, round_weights, search_rows
from forerun.lab.quantize.quantize_folder import QuantizeFolder
from forerun.lab.quantize.quantize_memory import flatten_nbytes
from forerun.lab.quantize.whole_block import READERS, Site, WholeBlock, advance
from forerun.model.config import ModelConfig, weight_shapes
from forerun.weights.flat import FlatParts, FlatRows, Split, num_places
from forerun.weights.hf_layouts import flat_config

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

    def widths(self) -> tuple[int, ...]:
        """The bits that sites are tried with."""
        return WIDTHS if self.bits is None else (self.bits,)


@dataclass
class FlattenStates:
    """Hidden states of the calibration text, of held-out ones (before, chosen, all of 8 bits), and of the probes.

    `probes` (C, P, T, D): first those of the unrounded model, then those with one site in 4 bits each.
    """

    calibration: Tensor
    held: Tensor
    rounded: Tensor
    eight: Tensor
    probes: Tensor


@dataclass(kw_only=True)
class FlattenJob(QuantizeFolder):
    """One model, one recipe. Raises as QuantizeFolder."""

    recipe: FlattenRecipe = field(default_factory=FlattenRecipe)
    divergences: dict[str, float] = field(default_factory=dict)
    """Of each site in 4 bits alone, in nats."""
    errors: dict[str, float] = field(default_factory=dict)
    """Of each site and width: the error of its products, relative to their size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.calibration:
            raise ConfigError("method flatten needs a text to calibrate on: give --calib FILE")

    def peak_nbytes(self) -> int:
        """About how much memory it takes at most, beside what the process has before."""
        texts = (*self.calibration, *self.held, *self.held, *self.held)
        probes = _carried(self.config.num_layers) if self.recipe.bits is None else 1
        num_tokens = sum(map(len, texts)) + probes * _PROBES * _PROBE_TOKENS
        return flatten_nbytes(self.config, num_tokens=num_tokens, length=max(map(len, texts)))

    @property
    def num_steps(self) -> int:
        """How far `run` counts."""
        return 2 * self.config.num_layers

    def run(self) -> Iterator[int]:
        """Round all blocks; yields how many steps are done, those of an earlier start included. Raises OSError."""
        self.claim()
        done, states = self._resume()
        yield done
        for step in range(done, self.num_steps):
            layer = step % self.config.num_layers
            if step < self.config.num_layers:
                self._measure(layer, states)
                if step == self.config.num_layers - 1:
                    self._diverge(states)
            else:
                self._emit(layer, states)
            self._save_states(step + 1, states)
            return_freed()
            yield step + 1

    def finish(self) -> dict[str, float]:
        """Write what is left and give the folder its name; perplexities, shares and bytes."""
        _, states = self._resume()
        figures: dict[str, float] = {}
        if len(self.held):
            targets = torch.tensor(self.held)
            named = {"before": states.held, "eight": states.eight, "after": states.rounded}
            for name, each in named.items():
                if len(each):
                    figures[f"ppl_{name}"] = math.exp(self.outside.loss(each, targets))
        figures |= self._shares()
        self.save_outside()
        for layer in range(self.config.num_layers):
            (self.partial / _candidates(layer)).unlink(missing_ok=True)
        figures["nbytes"] = self.write_folder(lambda kept: flat_config(self.recipe.split, kept))
        self.rename()
        return figures

    # --- the first pass ---

    def _measure(self, layer: int, states: FlattenStates) -> None:
        """Round a block's sites to all widths, and carry the probes through it."""
        weights = self.weights(layer)
        block = WholeBlock(self.config, weights)
        seen = observe(block, states.calibration)
        before, carried = states.probes[0].clone(), _carried(layer)
        for copy in states.probes[:carried]:
            advance(block, copy)
        kept: dict[str, FlatParts] = {}
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
                    states.probes[carried] = before
                    advance(FlatBlock(self.config, weights, flat), states.probes[carried])
                    carried += 1
                del rows, parts, flat
                return_freed()
        self.save(_candidates(layer), _packed(kept))

    def _diverge(self, states: FlattenStates) -> None:
        """From the probes, how far each site in 4 bits moves the model."""
        if self.recipe.bits is not None:
            return
        moved = self.outside.divergence(states.probes).tolist()
        keys = [(i, site) for i in range(self.config.num_layers) for site in READERS]
        self.divergences = {f"{i}.{s}": kl for (i, s), kl in zip(keys, moved, strict=True)}
        states.probes = states.probes[:0]

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

    def _shares(self) -> dict[str, float]:
        """Of multiplications: the share in 4 bits. Widening; bytes of fp16 weights over those of the codes."""
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

    def _emit(self, layer: int, states: FlattenStates) -> None:
        """Write a block as chosen, and carry the held-out texts through it."""
        weights, widths = self.weights(layer), self.widths()
        flat = self._flat(layer, {site: widths[layer, site] for site in READERS})
        advance(WholeBlock(self.config, weights), states.held)
        advance(FlatBlock(self.config, weights, flat), states.rounded)
        if len(states.eight):
            eight = self._flat(layer, dict.fromkeys(READERS, 8))
            advance(FlatBlock(self.config, weights, eight), states.eight)
        self.write_block(layer, {**weights, **flat})

    def _flat(self, layer: int, bits_of: Mapping[Site, int]) -> dict[str, FlatParts]:
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

    # --- what lies in the folder meanwhile ---

    def _resume(self) -> tuple[int, FlattenStates]:
        if (state := self.load_state()) is not None:
            known, tensors = state
            self.errors, self.divergences = known["errors"], known["divergences"]
            tensors["probes"] = self._with_room(tensors["probes"])
            return known["done"], FlattenStates(**tensors)
        calibration, held = map(self.outside.embed, (self.calibration, self.held))
        probes = self._with_room(calibration[:_PROBES, :_PROBE_TOKENS][None])
        eight = held.clone() if self.recipe.bits is None else held[:0].clone()
        return 0, FlattenStates(calibration, held, held.clone(), eight, probes)

    def _save_states(self, done: int, states: FlattenStates) -> None:
        known = {"done": done, "errors": self.errors, "divergences": self.divergences}
        probes = states.probes[: _carried(done)]
        self.save_state(known, vars(states) | {"probes": probes})

    def _with_room(self, probes: Tensor) -> Tensor:
        """Probes, and room for those to come."""
        if self.recipe.bits is not None or not len(probes):
            return probes.clone()
        whole = torch.zeros(_carried(self.config.num_layers), *probes.shape[1:])
        whole[: len(probes)] = probes
        return whole


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


def _packed(flat: Mapping[str, FlatParts]) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for name, parts in flat.items():
        rows = parts.rows
        arrays: dict[str, np.ndarray] = {"codes": parts.codes, "scales": parts.scales}
        arrays |= {"steps": rows.steps, "pieces": rows.pieces, "limit": np.array([rows.limit])}
        tensors |= {f"{name}.{part}": array for part, array in arrays.items()}
    return tensors


def _unpacked(file: safetensors.safe_open, name: str, split: Split) -> FlatParts:
    codes, scales, steps, pieces, limit = (
        file.get_tensor(f"{name}.{part}").numpy()
        for part in ("codes", "scales", "steps", "pieces", "limit")
    )
    return FlatParts(codes, scales, FlatRows(steps, pieces, int(limit[0]), split))
