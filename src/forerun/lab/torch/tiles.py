"""What the parts of the torch decoder are given: weights as layers, and TILE rows of a pass with what they see.

R = TILE rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from forerun.core.batch import Segment
from forerun.lab.torch import reference as ops
from forerun.lab.torch.reference import KeyBlock
from forerun.model.config import ModelConfig, RopeConfig

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
            partial(ops.linear, weight=weight, bias=offset)
            for weight, offset in zip(weights, biases, strict=True)
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

    def norm_of_each(self, name: str) -> Layer:
        """Return what normalises each of the heads (R, H, E), whose weights differ."""
        weight = self.tensors[name].view(-1, self.config.head_dim)
        ones, eps = torch.ones_like(weight[0]), self.config.norm_eps
        if self.config.norm == "rms":
            return lambda heads: ops.rms_norm(heads, ones, eps) * weight
        return lambda heads: ops.layer_norm(heads, ones, None, eps) * weight

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
    paths: Sequence[list[int]]
    """Where the rows of each row's path lie beside the slot's recurrent state, its own last; none without one."""


@dataclass(frozen=True, slots=True)
class Tile:
    """TILE rows of a pass, prepared once for all layers. Rows past `num_rows` repeat the last and are thrown away."""

    num_rows: int
    inputs: Tensor
    positions: Tensor
    angles: Mapping[RopeConfig, tuple[Tensor, Tensor]]
    """Cosines and sines (R, 1, rotary_dim / 2) of the rows' positions."""
    query_scale: Tensor | None
    """What queries are multiplied by (R, 1, 1)."""
    per_layer: Tensor | None
    """The rows' embeddings for each layer (R, layers, width)."""
    segments: tuple[TileSegment, ...]
