"""The decoder of all families in fp32 torch: embed, blocks of attention and MLP, norm, head.

It is the reference: plain, device-agnostic, and exact in the sense of the row law, which it gets by
computing every pass in tiles of TILE rows (see `model/kernels/reference.py`). It knows neither checkpoints
(`loader.py`) nor drafting: a draft's tree arrives as a batch like any other. A pre-norm transformer
after Vaswani et al., arXiv 1706.03762.

R = TILE rows, M rows that need logits, D width, H heads, G kv heads, E head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import CapacityError
from forerun.core.types import TopK
from forerun.model.cache.base import KVCache
from forerun.model.cache.tensors import TensorCache
from forerun.model.config import ModelConfig, RopeConfig
from forerun.model.kernels import reference as ops
from forerun.model.kernels.reference import KEY_BLOCK, TILE, KeyBlock
from forerun.model.model import HeadPart, Hidden, LayerPlan, reserve_rows, top_k
from forerun.model.visibility import key_blocks

Layer = Callable[[Tensor], Tensor]


class Weights:
    """Tensors by canonical name, handed out as the layers that they belong to."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors

    def linear(self, name: str) -> Layer:
        """Return what maps (R, in) to (R, out), with a bias if there is one."""
        return partial(ops.linear, weight=self.tensors[name], bias=self._bias(name))

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
    blocks: list[KeyBlock]


@dataclass(frozen=True, slots=True)
class Tile:
    """TILE rows of a pass, prepared once for all layers. Rows past `num_rows` repeat the last and are thrown away."""

    num_rows: int
    inputs: Tensor
    positions: Tensor
    cos: Tensor | None
    sin: Tensor | None
    segments: tuple[TileSegment, ...]


class Attention:
    """Grouped-query attention over the cache, Ainslie et al., arXiv 2305.13245."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.config = weights.config
        self.layer = layer
        name = f"layers.{layer}."
        self.q, self.k, self.v, self.o = (weights.linear(name + part) for part in "qkvo")
        self.head_norms: tuple[Layer, Layer] | None = None
        if self.config.qk_norm:
            self.head_norms = weights.norm(name + "q_norm"), weights.norm(name + "k_norm")

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D), and leave the rows' keys and values in the cache."""
        query, key, value = self._project(x, tile)
        mixed = torch.zeros_like(query)
        for part in tile.segments:
            slot, start = part.segment.slot, part.segment.base + part.segment.first
            cache.write(self.layer, slot, start, key[part.rows], value[part.rows])
            stop = int(part.segment.base + part.segment.stop)
            keys, values = cache.read(self.layer, slot, -(-stop // KEY_BLOCK) * KEY_BLOCK)
            own = cache.query(query[part.padded_rows])
            out = ops.attention(own, keys, values, part.blocks, self.config.scale)
            mixed[part.rows] = out[: part.segment.num_rows]
        return self.o(mixed.flatten(1))

    def _project(self, x: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
        width = self.config.head_dim
        query = self.q(x).view(TILE, -1, width)  # (R, H, E)
        key = self.k(x).view(TILE, -1, width)  # (R, G, E)
        value = self.v(x).view(TILE, -1, width)
        if self.head_norms is not None:
            query, key = self.head_norms[0](query), self.head_norms[1](key)
        if tile.cos is not None and tile.sin is not None:
            query, key = ops.rope(query, tile.cos, tile.sin), ops.rope(key, tile.cos, tile.sin)
        return query, key, value


class MLP:
    """Two matrices and an activation, or three when gated (Shazeer, arXiv 2002.05202)."""

    def __init__(self, weights: Weights, layer: int) -> None:
        name = f"layers.{layer}."
        self.up, self.down = weights.linear(name + "up"), weights.linear(name + "down")
        self.gate = weights.linear(name + "gate") if weights.config.gated_mlp else None
        self.activation = ops.ACTIVATIONS[weights.config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """Map (R, D) to (R, D)."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block:
    """One layer: attention and MLP, each behind its norm and added to what came in."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.residual_multiplier = weights.config.residual_multiplier
        self.attention_norm = weights.norm(f"layers.{layer}.attn_norm")
        self.attention = Attention(weights, layer)
        self.mlp_norm = weights.norm(f"layers.{layer}.mlp_norm")
        self.mlp = MLP(weights, layer)

    def attend(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D)."""
        return x + self.attention(self.attention_norm(x), tile, cache) * self.residual_multiplier

    def feed(self, x: Tensor) -> Tensor:
        """Map (R, D) to (R, D)."""
        return x + self.mlp(self.mlp_norm(x)) * self.residual_multiplier


class Decoder:
    """A model over fp32 weights with the names and shapes of `model.config.weight_shapes`.

    Implements `model.model.Model`.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.device = weights["embed"].device
        named = Weights(config, weights)
        self.weights = dict(weights)
        self._embed = weights["embed"]
        self._positions = weights.get("positions")
        self._blocks = [Block(named, i) for i in range(config.num_layers)]
        self._whole = LayerPlan.of(config.num_layers)
        self._norm = named.norm("norm")
        self._head = named.linear("embed" if config.tied_head else "head")
        self._inv_freq = None
        if config.rope is not None:
            self._inv_freq = inverse_frequencies(config.rope).to(self.device)

    @torch.no_grad()
    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        taps: tuple[int, ...] = (),
        plan: LayerPlan | None = None,
        inputs: Tensor | None = None,
    ) -> Hidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows.

        Without a `plan` every sublayer is run. `inputs` (R, D) takes the place of `embed(tokens)`.
        Raises CapacityError, before anything is written, if a row does not fit the cache or the model's context.
        """
        assert isinstance(cache, TensorCache)
        self._check_room(batch, cache)
        plan = plan or self._whole
        rows = self.embed(self._to_device(batch.tokens())) if inputs is None else inputs
        tiles = [
            self._run(self._tile(part, own), cache, taps, plan)
            for part, own in zip(batch.split(TILE), rows.split(TILE), strict=True)
        ]
        last, *tapped = (torch.cat(parts) for parts in zip(*tiles, strict=True))
        return Hidden(last, tuple(tapped))

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (M, V), fp32, of hidden states (M, D)."""
        logits = hidden.new_empty(len(hidden), self.config.vocab_size)
        for start in range(0, len(hidden), TILE):
            rows = hidden[start : start + TILE]
            logits[start : start + TILE] = self._head(_pad(rows))[: len(rows)]
        return logits if self.config.logits_divisor == 1 else logits / self.config.logits_divisor

    def topk(
        self,
        hidden: Tensor,
        k: int,
        *,
        log_normaliser: bool = False,
        logits: Tensor | None = None,
    ) -> TopK:
        """Return the k likeliest tokens of each row; see `model.model.Model`."""
        every = self.head(hidden)
        if logits is not None:
            logits.copy_(every)
        return top_k(every, k, log_normaliser=log_normaliser)

    def head_rows(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Return the logits (M, n) of some tokens (n,): those columns of `head(hidden)`."""
        return self.head(hidden)[:, ids]

    def head_part(self, ids: Tensor) -> HeadPart:
        """Return the head of some tokens (n,): the whole one, of which their logits are taken."""
        return HeadPart(lambda hidden: self.head_rows(hidden, ids), nbytes=0)

    def new_cache(
        self,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
    ) -> TensorCache:
        """Return a cache that fits this model; `auto` is fp32."""
        return TensorCache(
            num_layers=self.config.num_layers,
            num_slots=num_slots,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            max_len=max_len,
            device=self.device,
            kv=kv,
            num_blocks=num_blocks,
        )

    def nbytes(self) -> int:
        """Return the bytes of the weights as held in memory."""
        return sum(tensor.nbytes for tensor in self.weights.values())

    def _run(
        self, tile: Tile, cache: TensorCache, taps: tuple[int, ...], plan: LayerPlan
    ) -> list[Tensor]:
        """Return the last hidden state of a tile's rows, then the asked layers' outputs, each (num_rows, D)."""
        x = self._with_positions(tile)
        outputs: dict[int, Tensor] = {}
        for layer, block in enumerate(self._blocks):
            if 2 * layer in plan.sublayers:
                x = block.attend(x, tile, cache)
            if 2 * layer + 1 in plan.sublayers:
                x = block.feed(x)
            if layer in taps:
                outputs[layer] = x
        states = [self._norm(x), *(outputs[layer] for layer in taps)]
        return [state[: tile.num_rows] for state in states]

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Embed tokens (R,) as (R, D), positions left out."""
        return self._embed[ids.to(self.device)] * self.config.embedding_multiplier

    def _with_positions(self, tile: Tile) -> Tensor:
        x = tile.inputs
        if self._positions is None or self.config.learned_position_offset is None:
            return x
        return x + self._positions[tile.positions + self.config.learned_position_offset]

    def _tile(self, batch: Batch, inputs: Tensor) -> Tile:
        padding = (0, TILE - batch.num_rows)
        positions = self._to_device(np.pad(batch.positions(), padding, mode="edge"))
        cos, sin = self._rotation(positions)
        return Tile(
            num_rows=batch.num_rows,
            inputs=torch.cat((inputs, inputs[-1:].expand(TILE - len(inputs), -1))),
            positions=positions,
            cos=cos,
            sin=sin,
            segments=tuple(map(self._tile_segment, batch.segments, batch.spans())),
        )

    def _tile_segment(self, segment: Segment, span: range) -> TileSegment:
        rows = np.minimum(np.arange(span.start, span.start + TILE), span.stop - 1)
        blocks = key_blocks(segment, self.config.sliding_window, self.device)
        return TileSegment(segment, slice(span.start, span.stop), self._to_device(rows), blocks)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Return the cosines and sines (R, 1, rotary_dim / 2) of the rows' angles."""
        if self._inv_freq is None or self.config.rope is None:
            return None, None
        angles = (positions.float()[:, None] * self._inv_freq)[:, None]
        factor = self.config.rope.attention_factor
        return angles.cos() * factor, angles.sin() * factor

    def _to_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)

    def _check_room(self, batch: Batch, cache: KVCache) -> None:
        for segment in batch.segments:
            last = int(segment.positions().max())
            if last >= self.config.max_position:
                raise CapacityError(
                    f"position {last} is beyond the model's context of {self.config.max_position} tokens"
                )
        reserve_rows(batch, cache)


def inverse_frequencies(rope: RopeConfig) -> Tensor:
    """Return the radians a position adds to the angle of each feature pair, (rotary_dim / 2,), fp32."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    frequencies = 1.0 / rope.theta**exponents
    return frequencies if rope.factors is None else frequencies / torch.tensor(rope.factors)


def _pad(rows: Tensor) -> Tensor:
    missing = TILE - len(rows)
    return rows if missing == 0 else torch.cat((rows, rows.new_zeros(missing, rows.shape[1])))
