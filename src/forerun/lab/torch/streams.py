"""Layers over several streams of states: AltUp (arXiv 2301.13310) and LAuReL (arXiv 2411.07501), as in Gemma 3n.

A row has S states of width D; layers compute the first. R = TILE rows. Sums over streams are added one by one, so
that their order is the same for all rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from forerun.lab.torch.block import Block
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.tiles import Tile, Weights
from forerun.model.config import StreamsConfig

_LEAST = 1e-5
"""Of a mean square that something is divided by."""


class StreamBlock(Block):
    """One layer: it predicts all streams, computes the first, and corrects all by what it has changed."""

    def __init__(self, weights: Weights, layer: int) -> None:
        super().__init__(weights, layer)
        assert weights.config.streams is not None
        name, num = f"layers.{layer}.", weights.config.streams.num
        tensors = weights.tensors
        self.left, self.right = (weights.linear(f"{name}laurel_{n}") for n in ("left", "right"))
        self.laurel_norm = weights.norm(name + "laurel_norm")
        self.router_norm = weights.norm(name + "altup_router_norm")
        self.router = tensors[name + "altup_router"].view(num, -1)
        self.predicting = tensors[name + "altup_predict"].view(num, num, num)
        self.correcting = tensors[name + "altup_correct"].view(num, num)
        self.read_scale = tensors[name + "altup_scale"]

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, S, D) to (R, S, D)."""
        assert self.mixer is not None
        assert self.mlp is not None
        assert self.per_layer is not None
        predicted = self._predict(x)
        first = predicted[:, 0]
        read = self._norm("attn", first)
        beside = read + self.laurel_norm(self.right(self.left(read)))
        first = self._add(first + beside, "attn", self.mixer(read, tile, cache)) * math.sqrt(0.5)
        first = self._add(first, "mlp", self.mlp(self._norm("mlp", first)))
        corrected = self._correct(predicted, first)
        added = self.per_layer(corrected[:, 0] * self.read_scale, tile)
        return torch.cat((corrected[:, :1], corrected[:, 1:] + added[:, None]), 1)

    def _predict(self, x: Tensor) -> Tensor:
        """Return all streams (R, S, D), each with a mixture of all added."""
        shares = _mixed(self._routed(x[:, 0]), self.predicting)  # (R, to, from)
        predicted = x
        for stream in range(x.shape[1]):
            predicted = predicted + x[:, None, stream] * shares[:, :, stream, None]
        return predicted

    def _correct(self, predicted: Tensor, first: Tensor) -> Tensor:
        """Return all streams (R, S, D), each with its share of what the layer has changed in the first (R, D)."""
        shares = _mixed(self._routed(first), self.correcting) + 1
        return predicted + (first - predicted[:, 0])[:, None] * shares[:, :, None]

    def _routed(self, x: Tensor) -> Tensor:
        """Return the numbers (R, S) that decide on a row's (R, D) shares."""
        return torch.tanh((self.router_norm(x)[:, None] * self.router).sum(-1))


class StreamEnds:
    """How the streams begin, and how they become one."""

    def __init__(self, weights: Weights, streams: StreamsConfig) -> None:
        self.first = weights.each("altup_proj", streams.num - 1)
        self.last = weights.each("altup_unembed", streams.num - 1)

    def begin(self, x: Tensor) -> Tensor:
        """Return the streams (R, S, D) of embeddings (R, D): these, and projections of them as large."""
        return torch.stack((x, *(_as_large(project(x), x) for project in self.first)), 1)

    def end(self, x: Tensor) -> Tensor:
        """Return the mean (R, D) of the first stream and of projections of the others (R, S, D), as large."""
        total = first = x[:, 0]
        for stream, project in enumerate(self.last, start=1):
            total = total + _as_large(project(x[:, stream]), first)
        return total / x.shape[1]


def _mixed(routed: Tensor, weight: Tensor) -> Tensor:
    """Return products (R, ...) of numbers (R, S) with a matrix (..., S)."""
    total = torch.zeros(len(routed), *weight.shape[:-1], device=routed.device)
    for stream in range(routed.shape[1]):
        factor = routed[:, stream].view(-1, *(1 for _ in weight.shape[:-1]))
        total = total + factor * weight[..., stream]
    return total


def _as_large(x: Tensor, like: Tensor) -> Tensor:
    """Return rows (R, D) with the root mean square of others."""
    size, target = x.square().mean(-1, keepdim=True), like.square().mean(-1, keepdim=True)
    return x * target.sqrt() / size.clamp(min=_LEAST).sqrt()
