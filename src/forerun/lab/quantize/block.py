"""One layer over whole texts in fp32, and what its matrices read: for calibration, which needs no batch invariance.

The layer is the torch decoder's own, of any family. That one computes tiles of 8 rows over a cache; here all T tokens
of a text are one pass, many times faster: attention but for that to latents, MLPs and experts, of which each computes
the rows that chose it. Attention to latents and recurrent mixers take the text in tiles.
T tokens, D width, N rows, K inputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.lab.quantize.awq import Inputs
from forerun.lab.quantize.flatten import rounded
from forerun.lab.torch import reference as ops
from forerun.lab.torch.block import Block
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.decoder import Decoder
from forerun.lab.torch.reference import TILE
from forerun.lab.torch.sublayers import Attention, Experts
from forerun.lab.torch.tiles import Layer, Tile, Weights
from forerun.model.config import ModelConfig
from forerun.model.shapes import weight_shapes
from forerun.weights.codes import Codes

Site = Literal["attn", "o", "mlp", "down"]
"""Where a block multiplies by weights: what q, k and v read, what o reads, what gate and up read, what down reads."""

READERS: Mapping[Site, tuple[str, ...]] = {
    "attn": ("q", "k", "v"),
    "o": ("o",),
    "mlp": ("gate", "up"),
    "down": ("down",),
}
"""Of a block of attention and a dense MLP, each behind a norm."""

MATRICES = tuple(name for readers in READERS.values() for name in readers)

_NAMES = {
    "q": "attn",
    "q_a": "attn",
    "in_proj": "attn",
    "router": "mlp",
    "gate": "mlp",
    "up": "mlp",
}
"""What a site is called whose first reader is such a matrix; others are called like it."""
KEPT = ("router", "dt", "beta", "k_b", "v_b")
"""Matrices that stay as they are: small ones, and those of latents, which the loader transposes."""

_SAMPLED = 128
"""About so many rows of a site's inputs are sampled."""


def matrices_of(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Return the matrices of a layer that are rounded, by their names without `layers.<i>.`, and their shapes."""
    start = f"layers.{layer}."
    shapes = {
        name.removeprefix(start): shape
        for name, shape in weight_shapes(config).items()
        if name.startswith(start) and len(shape) == 2
    }
    has_mamba = (kind := config.layer(layer).recurrent) is not None and kind.kind == "mamba2"
    # Mamba-2 has its steps' projection in one tensor with the others.
    return {n: shape for n, shape in shapes.items() if n not in KEPT or (n == "dt" and has_mamba)}


def input_widths(config: ModelConfig) -> set[int]:
    """Return how many inputs the matrices of a model have that are rounded."""
    layers = range(config.num_layers)
    return {shape[1] for i in layers for shape in matrices_of(config, i).values()}


def need_supported(config: ModelConfig, what: str) -> None:
    """Raise ConfigError if a layer reads more than the states before it; `what` is not supported then."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    reasons = {
        "embeddings of each layer": config.per_layer_width is not None,
        "layers that read others' keys": any(kind.shares_kv_of is not None for kind in layers),
        "several streams of states": config.streams is not None,
    }
    _refuse(config, what, reasons)


def need_plain(config: ModelConfig, what: str) -> None:
    """Raise ConfigError if a model's blocks are not all alike: attention and a dense MLP, each behind a norm."""
    reasons = {
        "layers that differ, or experts": config.layers,
        "recurrent layers": config.is_recurrent,
        "attention to latents": config.latent is not None,
        "norms after sublayers": config.norms in ("after", "both"),
        "one norm of attention and MLP": config.norms == "parallel",
        "norms of all of q and k": config.qk_norm == "whole",
        "attention sinks": config.attention_sinks,
        "soft caps": config.attention_cap is not None or config.logits_cap is not None,
        "several streams of states": config.streams is not None,
        "queries that grow": config.query_growth,
        f"activation {config.activation}": config.activation not in ops.ACTIVATIONS,
    }
    _refuse(config, what, reasons)


def _refuse(config: ModelConfig, what: str, reasons: Mapping[str, object]) -> None:
    missing = [reason for reason, is_there in reasons.items() if is_there]
    if missing:
        raise ConfigError(
            f"{what} of {config.family} is not supported: it has {', '.join(missing)}"
        )


class _NotedWeights(Weights):
    """Weights whose layers note what they read."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self.site_of: dict[str, str] = {}
        self.rows: dict[str, list[Tensor]] = {}
        self.flat: Mapping[str, Codes] = {}
        """Matrices whose inputs are flattened."""

    def linear(self, name: str) -> Layer:
        """Return what maps (R, in) to (R, out), by the weights that are there when it is called."""
        multiply, short = super().linear(name), name.rpartition(".")[2]

        def noting(x: Tensor) -> Tensor:
            self._note(short, x)
            codes = self.flat.get(short)
            return multiply(x if codes is None or codes.flat is None else rounded(codes.flat, x))

        return noting

    def _note(self, name: str, x: Tensor) -> None:
        """Add rows to a site's, whose first reader comes first in each pass."""
        if name not in self.site_of:
            last = (site for site, rows in self.rows.items() if rows[-1] is x)
            site = next(last, None)
            if site is None:
                site = _NAMES.get(name, name)
                site = name if site in self.rows else site
            self.site_of[name] = site
        rows = self.rows.setdefault(self.site_of[name], [])
        if not rows or rows[-1] is not x:
            rows.append(x)


class _WholeAttention(Attention):
    """Attention of all rows of a text at once."""

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        assert self.k is not None
        query = self._turned(self.q(x), self.q_norm, tile)
        if tile.query_scale is not None:
            query = query * tile.query_scale
        key, value = self._keys_and_values(self.k(x), x, tile)
        sees = _sees(len(x), self.kind.sliding_window, x.device)
        if self.config.attention_cap is None and self.sinks is None:
            # As a batch of one: other shapes take a path that stores the scores of all heads.
            query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=sees, scale=self.config.scale, enable_gqa=True
            )[0].transpose(0, 1)
        else:
            mixed = self._by_head(query, key, value, sees)
        out = mixed.flatten(1)
        return self.o(out if self.gate is None else out * ops.sigmoid(self.gate(x)))

    def _by_head(self, query: Tensor, key: Tensor, value: Tensor, sees: Tensor) -> Tensor:
        """Return what heads have read (T, H, E), with caps and sinks, one head at a time."""
        mixed, shared = torch.empty_like(query), query.shape[1] // key.shape[1]
        for head in range(query.shape[1]):
            scores = query[:, head] * self.config.scale @ key[:, head // shared].T
            scores = ops.capped(scores, self.config.attention_cap).masked_fill(~sees, -torch.inf)
            if self.sinks is not None:
                scores = torch.cat((scores, self.sinks[head].expand(len(scores), 1)), 1)
            weights = scores.softmax(-1)[:, : len(key)]
            mixed[:, head] = weights @ value[:, head // shared]
        return mixed


class _RoutedExperts(Experts):
    """Experts of which each computes the rows that chose it."""

    def __call__(self, x: Tensor, routed: Tensor) -> Tensor:
        shares = ops.expert_shares(self.router(routed), self.experts, self.choice_bias)
        self.rows, self.chosen = x, shares != 0
        if self.scale is not None:
            shares = shares * self.scale
        mixed = torch.zeros_like(x)
        for expert in self.chosen.any(0).nonzero().flatten().tolist():
            rows = self.chosen[:, expert].nonzero().flatten()
            out = self.down[expert](self._widened(expert, x[rows]))
            mixed.index_add_(0, rows, out * shares[rows, expert, None])
        return mixed


@dataclass(frozen=True, slots=True)
class Routed:
    """What a layer's experts read: rows (N, D), and which of them each expert computes (N, experts)."""

    rows: Tensor
    chosen: Tensor

    def of(self, expert: int) -> Tensor:
        """Return the rows of an expert."""
        return self.rows[self.chosen[:, expert]]


class WholeBlock:
    """A layer's weights by their canonical names without `layers.<i>.`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        layer: int = 0,
        flat: Mapping[str, Codes] | None = None,
    ) -> None:
        kind = config.layer(layer)
        config = replace(
            config, num_layers=1, layers=(kind,), tied_head=True, learned_position_offset=None
        )
        self._weights = _NotedWeights(config, {f"layers.0.{n}": w for n, w in weights.items()})
        self._weights.flat = {} if flat is None else flat
        device = next(iter(weights.values())).device
        around = {"embed": torch.zeros(1, config.hidden_size, device=device)}
        around["norm"] = torch.ones(0, device=device)
        self._decoder = Decoder(config, {**self._weights.tensors, **around})
        self._block = Block(self._weights, 0)
        self._rope = kind.rope
        self._is_tiled = kind.recurrent is not None or config.latent is not None
        self._is_tiled = self._is_tiled and kind.has_mixer
        self._mixer = self._block.mixer
        if self._is_tiled:
            self._block.mixer = self._by_tile
        elif kind.has_mixer:
            self._block.mixer = _WholeAttention(self._weights, 0)
        self._experts = None
        if kind.experts is not None:
            self._experts = _RoutedExperts(self._weights, 0, kind.experts)
            self._block.experts = self._experts
        self._cache: TensorCache = None  # type: ignore[assignment]  # no mixer reads it

    def __call__(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the layer's output (T, D) for its input (T, D), and what its matrices read, by site."""
        out = self._block(x, self._tile(x), self._cache)
        rows = self._weights.rows.items()
        return out, {site: parts[0] if len(parts) == 1 else _text(parts, x) for site, parts in rows}

    def output(self, x: Tensor) -> Tensor:
        """Return the layer's output (T, D) for its input (T, D), and keep nothing of what its matrices read."""
        out, _ = self(x)
        self._weights.rows = {}
        return out

    @property
    def readers(self) -> dict[str, list[str]]:
        """The matrices that read each site, experts aside, as far as it has been called."""
        found: dict[str, list[str]] = {}
        for name, site in self._weights.site_of.items():
            found.setdefault(site, []).append(name)
        return found

    @property
    def routed(self) -> Routed | None:
        """What the experts read of the last text."""
        experts = self._experts
        return None if experts is None else Routed(experts.rows, experts.chosen)

    def attention(self, x: Tensor) -> Tensor:
        """Return what the mixer gives (T, D) for the layer's input (T, D), before a norm behind it."""
        assert self._block.mixer is not None
        return self._block.mixer(self._block._norm("attn", x), self._tile(x), self._cache)

    def attended(self, x: Tensor) -> Tensor:
        """Return the layer's input (T, D) with what its mixer adds."""
        if self._block.mixer is None:
            return x
        return self._block._add(x, "attn", self.attention(x))

    def after_mlp(self, x: Tensor) -> Tensor:
        """Return the layer's output (T, D) for what `attended` gives."""
        return self._block._after_mlp(x, self._block._norm("mlp", x), self._tile(x))

    def _tile(self, x: Tensor) -> Tile:
        """Return a whole text as one tile, and forget what was read of the one before."""
        self._weights.rows = {}
        positions = torch.arange(len(x), device=x.device)
        angles = {} if self._rope is None else {self._rope: self._angles(positions)}
        scale = self._decoder._query_scale(positions)
        return Tile(len(x), x, positions, angles, scale, per_layer=None, segments=())

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        assert self._rope is not None
        return self._decoder._angles(positions, self._rope)

    def _by_tile(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Mix the rows of a text in tiles over a cache of its own."""
        assert self._mixer is not None
        cache = self._decoder.new_cache(1, len(x))
        segment = Segment(0, 0, (0,) * len(x), certain=len(x))
        mixed, first = [], 0
        for part in cache.parts(Batch((segment,)), TILE):
            rows = x[first : first + part.num_rows]
            tile = self._decoder._tile(part, rows, cache)
            mixed.append(self._mixer(tile.inputs, tile, cache)[: len(rows)])
            first += len(rows)
        return torch.cat(mixed)


def _text(parts: list[Tensor], x: Tensor) -> Tensor:
    """Return the rows of tiles, of which the last may be padded, as those of a text."""
    return torch.cat(parts)[: len(x)]


def _sees(num_tokens: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys (columns) a query (row) sees."""
    positions = torch.arange(num_tokens, device=device)
    distance = positions[:, None] - positions
    return (distance >= 0) & (distance < (window or num_tokens))


def advance(block: WholeBlock, states: Tensor) -> None:
    """Replace texts' hidden states (S, T, D) by the block's outputs."""
    for i in range(len(states)):
        states[i] = block(states[i])[0]


def observe(block: WholeBlock, states: Tensor) -> tuple[dict[str, Inputs], Routed | None]:
    """Replace texts' hidden states (S, T, D) by the block's outputs; return what its matrices read, and its experts."""
    seen: dict[str, Inputs] = {}
    routed: list[Routed] = []
    step = max(1, states.shape[0] * states.shape[1] // _SAMPLED)
    for i in range(len(states)):
        states[i], sites = block(states[i])
        for site, x in sites.items():
            seen[site] = added(seen.get(site), x, step, i)
        if block.routed is not None:
            routed.append(block.routed)
    for inputs in seen.values():
        inputs.magnitude.div_(inputs.num_tokens)
        inputs.gram.div_(inputs.num_tokens)
    if not routed:
        return seen, None
    rows, chosen = (torch.cat([getattr(r, part) for r in routed]) for part in ("rows", "chosen"))
    return seen, Routed(rows, chosen)


def inputs_of(x: Tensor) -> Inputs:
    """Return what there is to know of rows (N, K)."""
    inputs = added(None, x, max(1, len(x) // _SAMPLED), 0)
    inputs.magnitude.div_(len(x))
    inputs.gram.div_(len(x))
    return inputs


def added(before: Inputs | None, x: Tensor, step: int, index: int) -> Inputs:
    """Add rows x (N, K), the text of that index, to sums; one of `step` rows is sampled."""
    if before is None:
        each, pairs = x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1], x.shape[1])
        before = Inputs(0, each, pairs, each.clone(), x[:0])
    before.magnitude.add_(x.abs().sum(0))
    before.gram.addmm_(x.T, x)
    largest = torch.maximum(before.largest, x.abs().amax(0))
    sample = torch.cat((before.sample, x[(-index * len(x)) % step :: step]))
    count = before.num_tokens + len(x)
    return replace(before, num_tokens=count, largest=largest, sample=sample)


class FlatBlock(WholeBlock):
    """The block with some of its matrices flattened, as the kernels compute them but for the rounding of sums."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], flat: Mapping[str, Codes]
    ) -> None:
        values = {name: torch.from_numpy(codes.values()) for name, codes in flat.items()}
        super().__init__(config, {**weights, **values}, flat=flat)
