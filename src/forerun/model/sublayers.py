"""The parts of the torch decoder: attention over a cache, MLPs and mixtures of experts, and a block of them.

They compute TILE rows at a time, as `model/decoder.py` prepares them. Where families differ, `ModelConfig` says how.

R = TILE rows, D width, H heads, G kv heads, E head dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.batch import Segment
from forerun.model.cache.tensors import TensorCache
from forerun.model.config import ExpertsConfig, ModelConfig, RopeConfig
from forerun.model.kernels import reference as ops
from forerun.model.kernels.reference import KEY_BLOCK, TILE, KeyBlock

Layer = Callable[[Tensor], Tensor]


class Weights:
    """Tensors by canonical name, handed out as the layers that they belong to."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors

    def linear(self, name: str) -> Layer:
        """Return what maps (R, in) to (R, out), with a bias if there is one."""
        return partial(ops.linear, weight=self.tensors[name], bias=self._bias(name))

    def each(self, name: str, num_experts: int) -> list[Layer]:
        """Return what `linear` does of each expert, whose weights lie one below the other."""
        weights, bias = self.tensors[name].chunk(num_experts), self._bias(name)
        biases = [None] * num_experts if bias is None else bias.chunk(num_experts)
        return [
            partial(ops.linear, weight=own, bias=offset)
            for own, offset in zip(weights, biases, strict=True)
        ]

    def norm(self, name: str) -> Layer:
        """Return what normalises (..., D) over its last dimension: an RMS norm or a layer norm, as the config says."""
        weight, eps = self.tensors[name], self.config.norm_eps
        if self.config.norm == "rms":
            return partial(ops.rms_norm, weight=weight, eps=eps)
        return partial(ops.layer_norm, weight=weight, bias=self._bias(name), eps=eps)

    def optional_norm(self, name: str) -> Layer | None:
        """Return what normalises there, None if nothing does."""
        return self.norm(name) if name in self.tensors else None

    def _bias(self, name: str) -> Tensor | None:
        return self.tensors.get(f"{name}.bias")


@dataclass(frozen=True, slots=True)
class TileSegment:
    """One segment's part of a tile: where its rows are, and which keys they see."""

    segment: Segment
    rows: slice
    padded_rows: Tensor
    """(R,): its rows, the last one repeated, so that attention has its fixed shape."""
    blocks: Mapping[int | None, list[KeyBlock]]
    """By sliding window."""


@dataclass(frozen=True, slots=True)
class Tile:
    """TILE rows of a pass, prepared once for all layers. Rows past `num_rows` repeat the last and are thrown away."""

    num_rows: int
    inputs: Tensor
    positions: Tensor
    angles: Mapping[RopeConfig, tuple[Tensor, Tensor]]
    """Cosines and sines (R, 1, rotary_dim / 2) of the rows' positions."""
    growth: Tensor | None
    """What queries are multiplied by (R, 1, 1)."""
    per_layer: Tensor | None
    """The rows' embeddings for each layer (R, layers, width)."""
    segments: tuple[TileSegment, ...]


class Attention:
    """Grouped-query attention over the cache, Ainslie et al., arXiv 2305.13245."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.config = config = weights.config
        self.kind = kind = config.layer(layer)
        self.layer = layer
        self.num_kv_heads, self.head_dim = config.heads(layer)
        name = f"layers.{layer}."
        self.q, self.o = weights.linear(name + "q"), weights.linear(name + "o")
        has_keys = kind.shares_kv_of is None
        self.k = weights.linear(name + "k") if has_keys else None
        self.v = weights.linear(name + "v") if has_keys and kind.has_values else None
        self.q_norm = weights.optional_norm(name + "q_norm")
        self.k_norm = weights.optional_norm(name + "k_norm")
        self.sinks = weights.tensors[name + "sinks"] if config.attention_sinks else None

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D), and leave the rows' keys and values in the cache, if the layer has its own."""
        query = self._turned(self._heads(self.q(x), self.q_norm), tile)
        if tile.growth is not None:
            query = query * tile.growth
        own = None if self.k is None else self._keys_and_values(self.k(x), x, tile)
        source = self.layer if self.kind.shares_kv_of is None else self.kind.shares_kv_of
        mixed = torch.zeros_like(query)
        for part in tile.segments:
            slot, start = part.segment.slot, part.segment.base + part.segment.first
            if own is not None:
                key, value = (self._wide(rows[part.rows], cache) for rows in own)
                cache.write(self.layer, slot, start, key, value)
            stop = int(part.segment.base + part.segment.stop)
            keys, values = cache.read(source, slot, -(-stop // KEY_BLOCK) * KEY_BLOCK)
            rows = cache.query(query[part.padded_rows])
            out = ops.attention(
                rows,
                keys[: self.num_kv_heads, :, : self.head_dim],
                values[: self.num_kv_heads, :, : self.head_dim],
                part.blocks[self.kind.sliding_window],
                self.config.scale,
                cap=self.config.attention_cap,
                sinks=self.sinks,
            )
            mixed[part.rows] = out[: part.segment.num_rows]
        return self.o(mixed.flatten(1))

    def _keys_and_values(self, raw: Tensor, x: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the keys and values (R, G, E) of projected keys (R, G E) and of what was projected (R, D)."""
        key = self._turned(self._heads(raw, self.k_norm), tile)
        value = self._heads(raw if self.v is None else self.v(x), None)
        if self.config.value_norm:
            value = ops.rms_norm(value, value.new_ones(self.head_dim), self.config.norm_eps)
        return key, value

    def _heads(self, rows: Tensor, norm: Layer | None) -> Tensor:
        """Return rows (R, H E) as heads (R, H, E), normalised all at once or one by one."""
        if norm is not None and self.config.qk_norm == "whole":
            rows, norm = norm(rows), None
        heads = rows.view(TILE, -1, self.head_dim)
        return heads if norm is None else norm(heads)

    def _turned(self, heads: Tensor, tile: Tile) -> Tensor:
        if self.kind.rope is None:
            return heads
        return ops.rope(heads, *tile.angles[self.kind.rope])

    def _wide(self, heads: Tensor, cache: TensorCache) -> Tensor:
        """Pad heads (n, G, E) with zeros to those of the cache, which has room for the layer with the most."""
        num_kv_heads, head_dim = cache.heads
        missing = (0, head_dim - self.head_dim, 0, num_kv_heads - self.num_kv_heads)
        return functional.pad(heads, missing) if any(missing) else heads


class MLP:
    """Two matrices and an activation, or three when gated (Shazeer, arXiv 2002.05202)."""

    def __init__(self, weights: Weights, layer: int) -> None:
        name = f"layers.{layer}."
        self.up, self.down = weights.linear(name + "up"), weights.linear(name + "down")
        self.gate = weights.linear(name + "gate") if weights.config.gated_mlp else None
        self.activation = weights.config.activation

    def __call__(self, x: Tensor) -> Tensor:
        """Map (R, D) to (R, D)."""
        if self.gate is None:
            return self.down(ops.ACTIVATIONS[self.activation](self.up(x)))
        return self.down(ops.gated(self.activation, self.gate(x), self.up(x)))


class Experts:
    """A mixture of gated MLPs. Each one that a row chose computes the whole tile, so that no shape depends on others.

    A row's outputs are added in ascending order of experts; of an expert that it did not choose it gets an exact zero.
    """

    def __init__(self, weights: Weights, layer: int, experts: ExpertsConfig) -> None:
        name = f"layers.{layer}."
        self.experts, self.activation = experts, weights.config.activation
        self.router = weights.linear(name + "router")
        self.scale = weights.tensors.get(name + "experts_scale")
        self.gate, self.up, self.down = (
            weights.each(f"{name}expert_{part}", experts.num_experts)
            for part in ("gate", "up", "down")
        )

    def __call__(self, x: Tensor, routed: Tensor) -> Tensor:
        """Map (R, D) to (R, D); the router reads `routed` (R, D)."""
        shares = ops.expert_shares(
            self.router(routed), self.experts.num_active, self.experts.renormalized
        )  # (R, experts)
        if self.scale is not None:
            shares = shares * self.scale
        mixed = torch.zeros_like(x)
        for expert in (shares != 0).any(0).nonzero().flatten().tolist():
            inner = ops.gated(self.activation, self.gate[expert](x), self.up[expert](x))
            share = shares[:, expert, None]
            mixed += torch.where(share != 0, self.down[expert](inner) * share, 0.0)
        return mixed


class PerLayerInputs:
    """What a token brings for each layer: a row of a table, and a projection of its embedding."""

    def __init__(self, weights: Weights) -> None:
        self.config, self.table = weights.config, weights.tensors["per_layer_embed"]
        self.proj, self.norm = weights.linear("per_layer_proj"), weights.norm("per_layer_norm")

    def __call__(self, ids: Tensor, inputs: Tensor) -> Tensor:
        """Map tokens (R,) and their embeddings (R, D) to (R, layers, width)."""
        width = self.config.per_layer_width
        assert width is not None
        shape = (TILE, self.config.num_layers, width)
        told = self.table[ids].view(shape) * math.sqrt(width)
        made = self.norm((self.proj(inputs) * self.config.hidden_size**-0.5).view(shape))
        return (told + made) * math.sqrt(0.5)


class PerLayer:
    """A vector of each token for each layer, gated by the rows and added to them (Gemma 3n and 4)."""

    def __init__(self, weights: Weights, layer: int) -> None:
        name = f"layers.{layer}.inp_"
        self.layer = layer
        self.gate, self.proj = weights.linear(name + "gate"), weights.linear(name + "proj")
        self.norm = weights.norm(name + "norm")
        self.activation = ops.ACTIVATIONS[weights.config.activation]

    def __call__(self, x: Tensor, tile: Tile) -> Tensor:
        """Map (R, D) to (R, D)."""
        assert tile.per_layer is not None
        return self.norm(self.proj(self.activation(self.gate(x)) * tile.per_layer[:, self.layer]))


class Block:
    """One layer: attention and MLP, each between its norms and added to what came in."""

    NORMS = ("attn", "attn_out", "mlp", "mlp_out", "dense_out", "experts", "experts_out", "router")

    def __init__(self, weights: Weights, layer: int) -> None:
        config, name = weights.config, f"layers.{layer}."
        kind = config.layer(layer)
        self.residual_multiplier = config.residual_multiplier
        self.norms = {n: weights.optional_norm(f"{name}{n}_norm") for n in self.NORMS}
        self.attention = Attention(weights, layer)
        self.mlp = MLP(weights, layer) if kind.has_mlp else None
        self.experts = None if kind.experts is None else Experts(weights, layer, kind.experts)
        self.per_layer = None if config.per_layer_width is None else PerLayer(weights, layer)
        self.scale = weights.tensors[name + "scale"] if config.layer_scales else None

    def attend(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D)."""
        return self._add(x, "attn", self.attention(self._norm("attn", x), tile, cache))

    def feed(self, x: Tensor, tile: Tile) -> Tensor:
        """Map (R, D) to (R, D), with what comes after the MLP."""
        read = self._norm("mlp", x)
        parts = [] if self.mlp is None else [self._norm("dense_out", self.mlp(read))]
        if self.experts is not None:
            has_norms = self.norms["experts"] is not None
            rows, routed = (self._norm(n, x) if has_norms else read for n in ("experts", "router"))
            parts.append(self._norm("experts_out", self.experts(rows, routed)))
        x = self._add(x, "mlp", parts[0] if len(parts) == 1 else parts[0] + parts[1])
        if self.per_layer is not None:
            x = x + self.per_layer(x, tile)
        return x if self.scale is None else x * self.scale

    def _add(self, x: Tensor, part: str, out: Tensor) -> Tensor:
        return x + self._norm(f"{part}_out", out) * self.residual_multiplier

    def _norm(self, name: str, x: Tensor) -> Tensor:
        """Normalise where the family does so there."""
        norm = self.norms[name]
        return x if norm is None else norm(x)
