"""The parts of the torch decoder: attention over a cache, MLPs and mixtures of experts, and a block of them.

They compute TILE rows at a time, as `model/decoder.py` prepares them. Where families differ, `ModelConfig` says how.

R = TILE rows, D width, H heads, G kv heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

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
    segments: tuple[TileSegment, ...]


class Attention:
    """Grouped-query attention over the cache, Ainslie et al., arXiv 2305.13245."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.config = weights.config
        self.kind = weights.config.layer(layer)
        self.layer = layer
        name = f"layers.{layer}."
        self.q, self.k, self.v, self.o = (weights.linear(name + part) for part in "qkvo")
        self.norms: tuple[Layer, Layer] | None = None
        if self.config.qk_norm is not None:
            self.norms = weights.norm(name + "q_norm"), weights.norm(name + "k_norm")
        self.sinks = weights.tensors[name + "sinks"] if self.config.attention_sinks else None

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D), and leave the rows' keys and values in the cache."""
        query, key, value = self._project(x, tile)
        mixed = torch.zeros_like(query)
        for part in tile.segments:
            slot, start = part.segment.slot, part.segment.base + part.segment.first
            cache.write(self.layer, slot, start, key[part.rows], value[part.rows])
            stop = int(part.segment.base + part.segment.stop)
            keys, values = cache.read(self.layer, slot, -(-stop // KEY_BLOCK) * KEY_BLOCK)
            out = ops.attention(
                cache.query(query[part.padded_rows]),
                keys,
                values,
                part.blocks[self.kind.sliding_window],
                self.config.scale,
                cap=self.config.attention_cap,
                sinks=self.sinks,
            )
            mixed[part.rows] = out[: part.segment.num_rows]
        return self.o(mixed.flatten(1))

    def _project(self, x: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
        width = self.config.head_dim
        query, key = self.q(x), self.k(x)
        if self.norms is not None and self.config.qk_norm == "whole":
            query, key = self.norms[0](query), self.norms[1](key)
        query = query.view(TILE, -1, width)  # (R, H, E)
        key = key.view(TILE, -1, width)  # (R, G, E)
        value = self.v(x).view(TILE, -1, width)
        if self.norms is not None and self.config.qk_norm == "head":
            query, key = self.norms[0](query), self.norms[1](key)
        if self.kind.rope is not None:
            cos, sin = tile.angles[self.kind.rope]
            query, key = ops.rope(query, cos, sin), ops.rope(key, cos, sin)
        return query if tile.growth is None else query * tile.growth, key, value


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
        self.gate, self.up, self.down = (
            weights.each(f"{name}expert_{part}", experts.num_experts)
            for part in ("gate", "up", "down")
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map (R, D) to (R, D)."""
        shares = ops.expert_shares(
            self.router(x), self.experts.num_active, self.experts.renormalized
        )  # (R, experts)
        mixed = torch.zeros_like(x)
        for expert in (shares > 0).any(0).nonzero().flatten().tolist():
            inner = ops.gated(self.activation, self.gate[expert](x), self.up[expert](x))
            share = shares[:, expert, None]
            mixed += torch.where(share > 0, self.down[expert](inner) * share, 0.0)
        return mixed


class Block:
    """One layer: attention and MLP, each between its norms and added to what came in."""

    def __init__(self, weights: Weights, layer: int) -> None:
        config, name = weights.config, f"layers.{layer}."
        kind = config.layer(layer)
        self.residual_multiplier = config.residual_multiplier
        norms: dict[str, Layer] = {}
        for part in ("attn", "mlp"):
            if config.norms != "after":
                norms[part] = weights.norm(f"{name}{part}_norm")
            if config.norms != "before":
                norms[f"{part}_out"] = weights.norm(f"{name}{part}_out_norm")
        self.norms = norms
        self.attention = Attention(weights, layer)
        self.mlps: list[Layer] = []
        """What reads the same rows and is added up."""
        if kind.has_mlp:
            self.mlps.append(MLP(weights, layer))
        if kind.experts is not None:
            self.mlps.append(Experts(weights, layer, kind.experts))

    def attend(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D)."""
        return self._add(x, "attn", self.attention(self._norm("attn", x), tile, cache))

    def feed(self, x: Tensor) -> Tensor:
        """Map (R, D) to (R, D)."""
        read = self._norm("mlp", x)
        first, *others = (mlp(read) for mlp in self.mlps)
        return self._add(x, "mlp", sum(others, first))

    def _add(self, x: Tensor, part: str, out: Tensor) -> Tensor:
        return x + self._norm(f"{part}_out", out) * self.residual_multiplier

    def _norm(self, name: str, x: Tensor) -> Tensor:
        """Normalise where the family does so there."""
        return self.norms[name](x) if name in self.norms else x
