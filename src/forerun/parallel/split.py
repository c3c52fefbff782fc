"""Who holds what of a model: heads, channels of the MLPs, and rows of the head, by rank.

Matrices that read the rows are cut by their outputs (q, k, v, gate, up), those that add to the rows by their inputs
(o, down), as in Shoeybi et al., arXiv 1909.08053. Query heads stay with the keys and values they read; with more ranks
than kv heads, several ranks hold the same kv head and share its queries. Inputs are cut where the file's blocks end, so
parts may differ in size: the first ranks have the larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from forerun.core.errors import LoadError
from forerun.model.backends.base import BlankWeight
from forerun.model.config import ModelConfig
from forerun.model.loader import stored_weights
from forerun.model.shapes import weight_shapes

if TYPE_CHECKING:
    from forerun.model.arch.base.mapping import Arch
    from forerun.weights.checkpoint import Checkpoint
    from forerun.weights.rtn import Scheme
    from forerun.weights.stored import StoredTensor

TILE = 16
"""Rows of the head in a tile of the kernels; sizes of a part are multiples of it."""
CODES_UNIT = 128
"""Columns of codes that are cut together: the largest group of such files."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds of a model, in numbers of the whole."""

    rank: int
    size: int
    heads: range
    kv_heads: range
    channels: range
    tokens: range
    """Rows of the head; empty on all ranks but the first, if the vocabulary is too small to be cut."""

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Return the configuration of a model of this part alone."""
        own = replace(
            whole,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.channels),
        )
        if self.rank == 0:
            return own
        return replace(own, vocab_size=len(self.tokens) or whole.vocab_size, tied_head=False)

    def names(self, whole: ModelConfig) -> list[str]:
        """Return the weights of this part; tokens are looked up, and positions added, at rank 0."""
        absent = () if self.rank == 0 else ("embed", "positions")
        if self.rank > 0 and not self.tokens:
            absent = (*absent, "head")
        return [name for name in weight_shapes(self.config(whole)) if name not in absent]

    def cut(
        self, weights: Iterable[tuple[str, StoredTensor]], whole: ModelConfig
    ) -> Iterator[tuple[str, StoredTensor]]:
        """Yield this part of the model's weights, in their order, a bias behind its weight. Raises LoadError."""
        for name, stored in weights:
            short = name.removesuffix(".bias").rpartition(".")[2]
            is_bias = name.endswith(".bias")
            rows, columns = self._rows(short, whole), self._columns(short, whole)
            if self.rank > 0 and (
                short == "positions" or (short == "embed" and not whole.tied_head)
            ):
                continue
            if self.rank > 0 and short in ("embed", "head"):
                if self.tokens:
                    own = stored.rows(_index(self.tokens))
                    yield name.replace("embed", "head"), own
            elif columns is not None and not is_bias:
                own = stored.columns(columns.start, columns.stop)
                stored.release()
                yield name, own
            elif columns is not None and self.rank > 0:
                continue  # what is added once is added by rank 0
            else:
                yield name, stored if rows is None else stored.rows(_index(rows))

    def blank(self, weights: Iterable[BlankWeight], whole: ModelConfig) -> Iterator[BlankWeight]:
        """Yield what is known of this part of the weights; only of rank 0."""
        shapes = weight_shapes(self.config(whole))
        return (weight._replace(shape=shapes[weight.name]) for weight in weights)

    def _rows(self, short: str, config: ModelConfig) -> range | None:
        dim = config.head_dim
        if short in ("q", "attn_gate"):
            return _times(self.heads, dim)
        if short in ("k", "v"):
            return _times(self.kv_heads, dim)
        if config.qk_norm == "each" and short in ("q_norm", "k_norm"):
            return _times(self.heads if short == "q_norm" else self.kv_heads, dim)
        if short == "sinks":
            return self.heads
        return self.channels if short in ("gate", "up") else None

    def _columns(self, short: str, config: ModelConfig) -> range | None:
        if short == "o":
            return _times(self.heads, config.head_dim)
        return self.channels if short == "down" else None


def check(config: ModelConfig) -> None:
    """Raise LoadError for a model whose layers cannot be cut."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    reasons = {
        "experts": any(layer.experts is not None for layer in layers),
        "norms of q and k over all heads": config.qk_norm == "whole",
        "layers of different sizes": any(
            layer.head_dim or layer.num_kv_heads or layer.intermediate_size for layer in layers
        ),
    }
    refuse(config, reasons, "tensor parallelism cannot cut: leave out --tensor-parallel-size")


def refuse(config: ModelConfig, reasons: Mapping[str, bool], what: str) -> None:
    """Raise LoadError for a model that no cut serves, or that has one of the `reasons`; the error ends with `what`."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    reasons = {
        "recurrent layers": config.is_recurrent,
        "layers of one sublayer": any(
            not (each.has_mixer and each.has_feed_forward) for each in layers
        ),
        "attention to latents": config.latent is not None,
        "per-layer embeddings": config.per_layer_width is not None,
        "layers that share keys and values": any(
            layer.shares_kv_of is not None for layer in layers
        ),
        **reasons,
    }
    found = next((reason for reason, is_there in reasons.items() if is_there), None)
    if found is not None:
        raise LoadError(f"{config.family} has {found}, which {what}")


def split(
    config: ModelConfig, size: int, head_unit: int = TILE, channel_unit: int = TILE
) -> list[Part]:
    """Return the parts of all ranks. Inputs of `o` and of `down` are cut at multiples of the units alone.

    Raises LoadError if there are fewer such places than ranks.
    """
    check(config)
    heads = _heads(config, size, math.lcm(head_unit, config.head_dim) // config.head_dim)
    channels = _shares(config.intermediate_size, channel_unit, size, "channels of the MLPs")
    tiles = -(-config.vocab_size // TILE)
    tokens = [range(config.vocab_size)] + [range(0)] * (size - 1)
    if tiles >= size:
        shares = _shares(tiles, 1, size, "tiles of the head")
        tokens = [range(s.start * TILE, min(s.stop * TILE, config.vocab_size)) for s in shares]
    return [Part(rank, size, *heads[rank], channels[rank], tokens[rank]) for rank in range(size)]


def split_checkpoint(
    checkpoint: Checkpoint, arch: Arch, config: ModelConfig, size: int, quant: Scheme = "none"
) -> list[Part]:
    """Return the parts of a checkpoint's model over `size` ranks. Reads no weights. Raises LoadError."""
    check(config)
    units = [
        math.lcm(
            *(
                _unit(stored, quant)
                for i in range(config.num_layers)
                for _, stored in stored_weights(checkpoint, arch, config, f"layers.{i}.{name}")
                if len(stored.shape) > 1
            )
        )
        for name in ("o", "down")
    ]
    return split(config, size, *units)


def _unit(stored: StoredTensor, quant: Scheme) -> int:
    """Return the columns of a matrix that cannot be parted."""
    if stored.read is not None:
        return CODES_UNIT
    return max(stored.format.block, TILE if quant == "none" else 2 * TILE)


def _heads(config: ModelConfig, size: int, unit: int) -> list[tuple[range, range]]:
    """Return each rank's query heads and kv heads; query heads are cut at multiples of `unit`."""
    num_kv, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    if size <= num_kv:
        shares = _shares(num_kv, math.lcm(unit, group) // group, size, "kv heads")
        return [(_times(kv, group), kv) for kv in shares]
    if group % unit and num_kv > 1:
        raise _too_many(size, num_kv, "kv heads")
    found = []
    for kv, (first, stop) in enumerate(pairwise(size * i // num_kv for i in range(num_kv + 1))):
        for own in _shares(group, min(unit, group), stop - first, "query heads of a kv head"):
            found.append((range(kv * group + own.start, kv * group + own.stop), range(kv, kv + 1)))
    return found


def _shares(total: int, unit: int, size: int, what: str) -> list[range]:
    """Deal `total` in whole units, the larger shares first."""
    units = total // unit
    if total % unit or units < size:
        raise _too_many(size, units, f"{what} (they are cut {unit} at a time)")
    counts = [unit * (units // size + (rank < units % size)) for rank in range(size)]
    return [range(a, b) for a, b in pairwise((0, *accumulate(counts)))]


def _too_many(size: int, parts: int, what: str) -> LoadError:
    return LoadError(
        f"--tensor-parallel-size {size} is more than this model can be cut into: {parts} parts by {what}"
    )


def _times(own: range, factor: int) -> range:
    return range(own.start * factor, own.stop * factor)


def _index(rows: range) -> slice:
    return slice(rows.start, rows.stop)
