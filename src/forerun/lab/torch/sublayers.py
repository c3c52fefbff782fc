"""The parts of the torch decoder: attention over a cache, MLPs, mixtures of experts, and embeddings of each layer.

They compute TILE rows at a time, as `decoder.py` prepares them. Where families differ, `ModelConfig` says how.

R = TILE rows, D width, H heads, G kv heads, E head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from forerun.lab.torch import reference as ops
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.reference import KEY_BLOCK, TILE
from forerun.lab.torch.tiles import Layer, Tile, Weights
from forerun.model.config import ExpertsConfig


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
        norm_of = weights.norm_of_each if config.qk_norm == "each" else weights.optional_norm
        self.q_norm, self.k_norm = norm_of(name + "q_norm"), norm_of(name + "k_norm")
        self.sinks = weights.tensors[name + "sinks"] if config.attention_sinks else None
        self.gate = weights.linear(name + "attn_gate") if config.attention_gate else None

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D), and leave the rows' keys and values in the cache, if the layer has its own."""
        query = self._turned(self.q(x), self.q_norm, tile)
        if tile.query_scale is not None:
            query = query * tile.query_scale
        keys_and_values = None if self.k is None else self._keys_and_values(self.k(x), x, tile)
        source = self.layer if self.kind.shares_kv_of is None else self.kind.shares_kv_of
        mixed = torch.zeros_like(query)
        for part in tile.segments:
            slot, start = part.segment.slot, part.segment.base + part.segment.first
            if keys_and_values is not None:
                key, value = (self._wide(rows[part.rows], cache) for rows in keys_and_values)
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
        out = mixed.flatten(1)
        return self.o(out if self.gate is None else out * ops.sigmoid(self.gate(x)))

    def _keys_and_values(self, raw: Tensor, x: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the keys and values (R, G, E) of projected keys (R, G E) and of what was projected (R, D)."""
        key = self._turned(raw, self.k_norm, tile)
        value = self._heads(raw if self.v is None else self.v(x))
        if self.config.value_norm:
            value = ops.rms_norm(value, value.new_ones(self.head_dim), self.config.norm_eps)
        return key, value

    def _heads(self, rows: Tensor) -> Tensor:
        """Return rows (R, H E) as heads (R, H, E)."""
        return rows.view(len(rows), -1, self.head_dim)

    def _turned(self, rows: Tensor, norm: Layer | None, tile: Tile) -> Tensor:
        """Return rows (R, H E) as heads (R, H, E), rotated and, by `norm`, normalised all at once or one by one."""
        if norm is not None and self.config.qk_norm == "whole":
            rows, norm = norm(rows), None
        heads, rope = self._heads(rows), self.kind.rope
        is_last = self.config.qk_norm_after_rope
        if norm is not None and not is_last:
            heads = norm(heads)
        if rope is not None:
            heads = ops.rope(heads, *tile.angles[rope])
        return norm(heads) if norm is not None and is_last else heads

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
        self.sparsity_cutoff = weights.config.layer(layer).sparsity_cutoff

    def __call__(self, x: Tensor) -> Tensor:
        """Map (R, D) to (R, D)."""
        gate = None if self.gate is None else self.gate(x)
        if gate is not None and self.sparsity_cutoff is not None:
            gate = ops.beyond(gate, self.sparsity_cutoff)
        return self.down(ops.activated(self.activation, self.up(x), gate))


class Experts:
    """A mixture of MLPs. Each one that a row chose computes the whole tile, so that no shape depends on others.

    A row's outputs are added in ascending order of experts; of an expert that it did not choose it gets an exact zero.
    """

    def __init__(self, weights: Weights, layer: int, experts: ExpertsConfig) -> None:
        name = f"layers.{layer}."
        self.experts, self.activation = experts, weights.config.activation
        self.router = weights.linear(name + "router")
        self.scale = weights.tensors.get(name + "experts_scale")
        self.choice_bias = weights.tensors.get(name + "choice_bias")
        self.mlp_gate = weights.tensors.get(name + "mlp_gate")
        self.up, self.down = (
            weights.each(f"{name}expert_{part}", experts.num_experts) for part in ("up", "down")
        )
        self.gate = None
        if weights.config.gated_mlp:
            self.gate = weights.each(f"{name}expert_gate", experts.num_experts)

    def __call__(self, x: Tensor, routed: Tensor) -> Tensor:
        """Map (R, D) to (R, D); the router reads `routed` (R, D)."""
        logits = self.router(routed)  # (R, experts)
        shares = ops.expert_shares(logits, self.experts, self.choice_bias)
        if self.scale is not None:
            shares = shares * self.scale
        mixed = torch.zeros_like(x)
        for expert in (shares != 0).any(0).nonzero().flatten().tolist():
            inner = self._widened(expert, x)
            share = shares[:, expert, None]
            mixed += torch.where(share != 0, self.down[expert](inner) * share, 0.0)
        return mixed

    def _widened(self, expert: int, x: Tensor) -> Tensor:
        gate = None if self.gate is None else self.gate[expert](x)
        return ops.activated(self.activation, self.up[expert](x), gate)


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
        ids = torch.where(ids < len(self.table), ids, 0)
        stored = self.table[ids].view(shape) * math.sqrt(width)
        projected = self.norm((self.proj(inputs) * self.config.hidden_size**-0.5).view(shape))
        return (stored + projected) * math.sqrt(0.5)


class PerLayer:
    """A vector of each token for each layer, gated by the rows, to be added to them (Gemma 3n and 4)."""

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
