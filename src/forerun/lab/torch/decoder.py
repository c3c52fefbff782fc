"""The decoder of all families in fp32 torch: embed, blocks of attention and MLP, norm, head.

It is the reference: plain, device-agnostic, and exact in the sense of the row law, which it gets by
computing every pass in tiles of TILE rows (see `reference.py`). It knows neither checkpoints
(`loader.py`) nor drafting: a draft's tree arrives as a batch like any other. A pre-norm transformer
after Vaswani et al., arXiv 1706.03762.

R = TILE rows, M rows that need logits, D width, H heads, G kv heads, E head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import CapacityError
from forerun.core.types import TopK
from forerun.lab.torch import reference as ops
from forerun.lab.torch.block import Block
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.reference import TILE
from forerun.lab.torch.streams import StreamBlock, StreamEnds
from forerun.lab.torch.sublayers import PerLayerInputs
from forerun.lab.torch.tiles import Tile, TileSegment, Weights
from forerun.lab.torch.visibility import key_blocks
from forerun.model.cache.base import KVCache
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig, RopeConfig
from forerun.model.model import HeadPart, Hidden


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
        block = Block if config.streams is None else StreamBlock
        self._blocks = [block(named, i) for i in range(config.num_layers)]
        self._ends = None if config.streams is None else StreamEnds(named, config.streams)
        self._per_layer = None if config.per_layer_width is None else PerLayerInputs(named)
        self._norm = named.norm("norm")
        self._head = named.linear("embed" if config.tied_head else "head")
        kinds = [config.layer(i) for i in range(config.num_layers)]
        self._windows = {kind.sliding_window for kind in kinds}
        self._frequencies = {
            kind.rope: torch.from_numpy(kind.rope.inverse_frequencies()).to(self.device)
            for kind in kinds
            if kind.rope is not None
        }

    @torch.no_grad()
    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        aux_layers: tuple[int, ...] = (),
        inputs: Floats | None = None,
    ) -> Hidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows.

        `inputs` (R, D) takes the place of `embed(tokens)`; per-layer embeddings are those of the tokens.
        Raises CapacityError, before anything is written, if a row does not fit the cache or the model's context.
        """
        assert isinstance(cache, TensorCache)
        self._check_room(batch, cache)
        given = self.embed(batch.tokens()) if inputs is None else inputs
        rows = self._to_device(given)
        tiles, first = [], 0
        parts = batch.split(TILE) if self.config.borrows_kv else cache.parts(batch, TILE)
        for part in parts:
            part_rows = rows[first : first + part.num_rows]
            tiles.append(self._run(self._tile(part, part_rows, cache), cache, aux_layers))
            first += part.num_rows
        last, *aux = (_host(torch.cat(parts)) for parts in zip(*tiles, strict=True))
        return Hidden(last, tuple(aux))

    def head(self, hidden: Floats) -> Floats:
        """Return the logits (M, V) of hidden states (M, D)."""
        return _host(self._logits(hidden))

    @torch.no_grad()
    def _logits(self, states: Floats) -> Tensor:
        hidden = self._to_device(states)
        logits = hidden.new_empty(len(hidden), self.config.vocab_size)
        for start in range(0, len(hidden), TILE):
            rows = hidden[start : start + TILE]
            logits[start : start + TILE] = self._head(_pad(rows))[: len(rows)]
        if self.config.logits_divisor != 1:
            logits = logits / self.config.logits_divisor
        return ops.capped(logits, self.config.logits_cap)

    def topk(
        self, hidden: Floats, k: int, *, log_normaliser: bool = False, logits: Floats | None = None
    ) -> TopK:
        """Return the k likeliest tokens of each row; see `model.model.Model`."""
        every = self._logits(hidden)
        if logits is not None:
            logits[:] = _host(every)
        return top_k(every, k, log_normaliser=log_normaliser)

    def head_rows(self, hidden: Floats, ids: Ids) -> Floats:
        """Return the logits (M, n) of some tokens (n,): those columns of `head(hidden)`."""
        return self.head(hidden)[:, ids]

    def head_weights(self, ids: Ids | None) -> Floats:
        """Return the head's rows (n, D) of some tokens (n,), None for all; a soft cap is left out."""
        head = self.weights["embed" if self.config.tied_head else "head"]
        rows = head if ids is None else head[self._to_device(np.asarray(ids))]
        return _host(rows / self.config.logits_divisor)

    def head_part(self, ids: Ids) -> HeadPart:
        """Return the head of some tokens (n,): the whole one, of which their logits are taken."""
        return HeadPart(lambda hidden: self.head_rows(hidden, ids), nbytes=0)

    def new_cache(
        self,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
        num_checkpoints: int | None = None,
        draft_rows: int = DRAFT_ROWS,
    ) -> TensorCache:
        """Return a cache that fits this model; `auto` is fp32."""
        return TensorCache(
            self.config,
            num_slots,
            max_len,
            kv,
            num_blocks,
            num_checkpoints,
            draft_rows,
            self.device,
        )

    @property
    def num_threads(self) -> int:
        """Threads that torch computes with."""
        return torch.get_num_threads()

    def nbytes(self) -> int:
        """Return the bytes of the weights as held in memory."""
        return sum(tensor.nbytes for tensor in self.weights.values())

    def scratch_nbytes(self, cache: KVCache, num_rows: int, num_nodes: int, head_rows: int) -> int:
        """Return the bytes of activations in fp32: a few of each row's width, and scores of all positions."""
        config = self.config
        width = 8 * config.hidden_size + 3 * config.intermediate_size
        return 4 * min(num_rows, TILE) * (width + config.num_heads * cache.max_len)

    def _run(self, tile: Tile, cache: TensorCache, aux_layers: tuple[int, ...]) -> list[Tensor]:
        """Return the last hidden state of a tile's rows, then the asked layers' outputs, each (num_rows, D)."""
        x = self._at(tile.inputs, tile.positions)
        x = x if self._ends is None else self._ends.begin(x)
        outputs: dict[int, Tensor] = {}
        for layer, block in enumerate(self._blocks):
            x = block(x, tile, cache)
            if layer in aux_layers:
                outputs[layer] = x if self._ends is None else x[:, 0]
        x = x if self._ends is None else self._ends.end(x)
        states = [self._norm(x), *(outputs[layer] for layer in aux_layers)]
        return [state[: tile.num_rows] for state in states]

    @torch.no_grad()
    def embed(self, ids: Ids) -> Floats:
        """Embed tokens (R,) as (R, D), positions left out."""
        return _host(self._embed[self._to_device(ids)] * self.config.embedding_multiplier)

    def embedded(self, tokens: Tensor) -> Tensor:
        """Embed a text's tokens (T,) from its first one on, with learned positions: (T, D) for a whole-text layer."""
        x = self._embed[tokens] * self.config.embedding_multiplier
        return self._at(x, torch.arange(len(x), device=x.device))

    def normed(self, x: Tensor) -> Tensor:
        """Return what the head reads of the last layer's output (T, D)."""
        return self._norm(x)

    def _at(self, x: Tensor, positions: Tensor) -> Tensor:
        if self._positions is None or self.config.learned_position_offset is None:
            return x
        return x + self._positions[positions + self.config.learned_position_offset]

    def _tile(self, batch: Batch, inputs: Tensor, cache: TensorCache) -> Tile:
        padding = (0, TILE - batch.num_rows)
        positions = self._to_device(np.pad(batch.positions(), padding, mode="edge"))
        inputs = torch.cat((inputs, inputs[-1:].expand(TILE - len(inputs), -1)))
        per_layer = None
        if self._per_layer is not None:
            tokens = self._to_device(np.pad(batch.tokens(), padding, mode="edge"))
            per_layer = self._per_layer(tokens, inputs)
        return Tile(
            num_rows=batch.num_rows,
            inputs=inputs,
            positions=positions,
            angles={rope: self._angles(positions, rope) for rope in self._frequencies},
            query_scale=self._query_scale(positions),
            per_layer=per_layer,
            segments=tuple(
                self._tile_segment(segment, span, cache)
                for segment, span in zip(batch.segments, batch.spans(), strict=True)
            ),
        )

    def _tile_segment(self, segment: Segment, span: range, cache: TensorCache) -> TileSegment:
        rows = np.minimum(np.arange(span.start, span.start + TILE), span.stop - 1)
        blocks = {
            window: key_blocks(segment, window, self.device, sees_own=not self.config.borrows_kv)
            for window in self._windows
        }
        tile_rows = slice(span.start, span.stop)
        return TileSegment(segment, tile_rows, self._to_device(rows), blocks, cache.paths(segment))

    def _angles(self, positions: Tensor, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines (R, 1, rotary_dim / 2) of the rows' angles."""
        angles = (positions.float()[:, None] * self._frequencies[rope])[:, None]
        return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor

    def _query_scale(self, positions: Tensor) -> Tensor | None:
        """Return what queries are multiplied by (R, 1, 1); None if nothing."""
        if self.config.query_growth == 0:
            return None
        times = positions // self.config.query_growth_every
        return (1 + self.config.query_growth * torch.log(1 + times.float()))[:, None, None]

    def _to_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)

    def _check_room(self, batch: Batch, cache: KVCache) -> None:
        for segment in batch.segments:
            last = int(segment.positions().max())
            if last >= self.config.max_position:
                raise CapacityError(
                    f"position {last} is beyond the model's context of {self.config.max_position} tokens"
                )


def _host(values: Tensor) -> NDArray[Any]:
    return values.cpu().numpy()


def _pad(rows: Tensor) -> Tensor:
    missing = TILE - len(rows)
    return rows if missing == 0 else torch.cat((rows, rows.new_zeros(missing, rows.shape[1])))


def top_k(logits: Tensor, k: int, *, log_normaliser: bool = False) -> TopK:
    """Choose the tokens of `Model.topk` from logits (M, V)."""
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must be 1 to {logits.shape[1]}, got {k}")
    if k == 1:
        ids = logits.argmax(-1, keepdim=True)
    else:
        more, ids = logits.topk(min(k + 1, logits.shape[1]))
        is_clear = (more[:, :-1] > more[:, 1:]).all(-1).tolist()  # of equal ones torch takes any
        rows = zip(ids[:, :k], is_clear, logits, more, strict=True)
        chosen = [
            row_ids if clear else _first_of_equals(row, largest[:k])
            for row_ids, clear, row, largest in rows
        ]
        ids = torch.stack(chosen) if chosen else logits.new_empty(0, k, dtype=torch.int64)
    # Row by row: torch sums one row in another order than several.
    sums = [row.logsumexp(-1).item() for row in logits] if log_normaliser else None
    norm = None if sums is None else np.array(sums, np.float32)
    return TopK(ids.cpu().numpy(), logits.gather(-1, ids).cpu().numpy(), norm)


def _first_of_equals(row: Tensor, largest: Tensor) -> Tensor:
    """Return the tokens (k,) of the largest logits (k,) of a row (V,); torch takes any of equal ones."""
    ids = (~(row < largest[-1])).nonzero()[:, 0]  # NaN is the largest
    return ids[row[ids].sort(descending=True, stable=True).indices[: len(largest)]]
