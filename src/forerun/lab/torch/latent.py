"""Attention to latents in fp32 torch: one compressed vector a row in the place of all heads' keys and values.

Multi-head latent attention, DeepSeek-V2, arXiv 2405.04434. A head's keys would be `k_b` times the latents, transposed;
here its query is multiplied by `k_b` instead, and what it has read of the latents by `v_b`, for every row, whether its
token is read, decoded or drafted: one form, one order of the sums.

R = TILE rows, D width, H heads, P rotated dimensions, L latent dimensions, N and V those of a head's query and output.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from forerun.lab.torch import reference as ops
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.reference import KEY_BLOCK, TILE
from forerun.lab.torch.tiles import Layer, Tile, Weights
from forerun.model.config import LatentConfig


class LatentAttention:
    """Takes the place of `sublayers.Attention`."""

    def __init__(self, weights: Weights, layer: int, latent: LatentConfig) -> None:
        self.config, self.latent, self.layer = weights.config, latent, layer
        name, heads = f"layers.{layer}.", weights.config.num_heads

        def norm(part: str) -> Layer:
            return partial(ops.rms_norm, weight=weights.tensors[name + part], eps=latent.norm_eps)

        self.q_a = weights.linear(name + "q_a") if latent.query_rank is not None else None
        self.q_a_norm = norm("q_a_norm") if latent.query_rank is not None else None
        self.q, self.q_rope = weights.linear(name + "q"), weights.linear(name + "q_rope")
        self.kv_a, self.kv_a_norm = weights.linear(name + "kv_a"), norm("kv_a_norm")
        self.k_rope, self.o = weights.linear(name + "k_rope"), weights.linear(name + "o")
        self.k_b, self.v_b = (weights.each(name + part, heads) for part in ("k_b", "v_b"))

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D), and leave the rows' keys and latents in the cache."""
        query, latent = self._queries(x, tile), self.kv_a_norm(self.kv_a(x))[:, None]
        key = torch.cat((latent, self._turned(self.k_rope(x), tile)), -1)  # (R, 1, L + P)
        mixed = query.new_zeros(TILE, self.config.num_heads, self.latent.rank)
        for part in tile.segments:
            slot, start = part.segment.slot, part.segment.base + part.segment.first
            cache.write(self.layer, slot, start, key[part.rows], latent[part.rows])
            stop = int(part.segment.base + part.segment.stop)
            keys, values = cache.read(self.layer, slot, -(-stop // KEY_BLOCK) * KEY_BLOCK)
            rows = cache.query(query[part.padded_rows])
            blocks = part.blocks[self.config.layer(self.layer).sliding_window]
            out = ops.attention(rows, keys, values, blocks, self.config.scale)
            mixed[part.rows] = out[: part.segment.num_rows]
        read = (each(mixed[:, head].contiguous()) for head, each in enumerate(self.v_b))
        return self.o(torch.cat([*read], -1))

    def _queries(self, x: Tensor, tile: Tile) -> Tensor:
        """Return what heads ask of keys (R, H, L + P)."""
        if self.q_a is not None and self.q_a_norm is not None:
            x = self.q_a_norm(self.q_a(x))
        plain = self.q(x).view(TILE, -1, self.latent.query_dim)
        of_latents = [each(plain[:, head].contiguous()) for head, each in enumerate(self.k_b)]
        query = torch.cat((torch.stack(of_latents, 1), self._turned(self.q_rope(x), tile)), -1)
        return query if tile.query_scale is None else query * tile.query_scale

    def _turned(self, rows: Tensor, tile: Tile) -> Tensor:
        """Return rows (R, H P) as rotated heads (R, H, P)."""
        rope = self.config.layer(self.layer).rope
        assert rope is not None
        return ops.rope(rows.view(TILE, -1, self.latent.rope_dim), *tile.angles[rope])
