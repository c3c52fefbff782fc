"""A layer's recurrent mixer in fp32 torch: a short convolution, and heads with a state (`recurrence.py`).

R = TILE rows, D width, H heads, G key heads, K key dimension, V value dimension, C channels, T taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.lab.torch import recurrence
from forerun.lab.torch import reference as ops
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.recurrence import CHUNK
from forerun.lab.torch.states import LayerStates, TensorStates
from forerun.lab.torch.tiles import Tile, Weights
from forerun.model.config import RecurrentConfig


@dataclass(frozen=True, slots=True)
class RowParts:
    """What the heads of a row bring: queries and keys (G, K), values (H, V), log-decays and rates (H,)."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    rate: Tensor | None = None
    """How far the state's answer to the key is moved to the value; None if the value is added to it."""
    skipped: Tensor | None = None
    """What is added to what the row reads (H, V)."""


class Recurrent:
    """Takes the place of `sublayers.Attention`."""

    def __init__(self, weights: Weights, layer: int, kind: RecurrentConfig) -> None:
        name, tensors = f"layers.{layer}.", weights.tensors
        self.kind, self.layer, self.eps = kind, layer, weights.config.norm_eps
        self.in_proj, self.o = weights.linear(name + "in_proj"), weights.linear(name + "o")
        self.taps = tensors[name + "conv"].view(-1, kind.kernel)
        self.conv_bias = tensors.get(name + "conv_bias")
        if kind.kind == "conv":
            return
        self.z, self.dt = weights.linear(name + "z"), weights.linear(name + "dt")
        self.beta = weights.linear(name + "beta") if kind.kind == "delta" else None
        self.dt_bias, self.decay = tensors[name + "dt_bias"], tensors[name + "decay"]
        if kind.kind == "mamba2":
            self.skip = tensors[name + "skip"]
        self.state_norm = tensors[name + "state_norm"]

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D), and leave beside the slots' states what the rows bring."""
        assert cache.recurrent is not None
        raw, gate = self._raw(x)
        convolved = self._convolved(raw, tile, cache.recurrent)
        if self.kind.kind == "conv":
            return self.o(convolved * gate)
        steps = recurrence.softplus(self.dt(x) + self.dt_bias)  # (R, H)
        rates = None if self.beta is None else ops.sigmoid(self.beta(x))
        read = x.new_zeros(len(x), self.kind.num_heads, self.kind.value_dim)
        states: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        for part in tile.segments:
            for row, path in zip(range(part.rows.start, part.rows.stop), part.paths, strict=True):
                parts = self._parts(
                    convolved[row], steps[row], None if rates is None else rates[row]
                )
                read[row] = self._read(parts, part.segment.slot, path, cache.recurrent, states)
        return self.o(self._gated(read, gate))

    def _raw(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is convolved (R, C), and what gates the output (R, H V), or (R, D) of a convolution alone."""
        projected = self.in_proj(x)
        if self.kind.kind != "conv":
            return projected, self.z(x)
        before, behind, inner = projected.chunk(3, -1)
        return before * inner, behind

    def _convolved(self, raw: Tensor, tile: Tile, memory: TensorStates) -> Tensor:
        """Return rows (R, C), and keep what they are made of."""
        layer, mixed = memory.layers[self.layer], torch.zeros_like(raw)
        for part in tile.segments:
            slot = part.segment.slot
            history = layer.history[memory.state_of[slot]]
            for row, path in zip(range(part.rows.start, part.rows.stop), part.paths, strict=True):
                layer.raw[slot, path[-1]] = raw[row]
                window = torch.cat((history, layer.raw[slot, path]))[-self.kind.kernel :]
                mixed[row] = recurrence.convolve(
                    window, self.taps, self.conv_bias, activated=self.kind.kind != "conv"
                )
        return mixed

    def _parts(self, channels: Tensor, step: Tensor, rate: Tensor | None) -> RowParts:
        """Cut the channels (C,) of a row into heads; `step` (H,) scales its log-decays."""
        kind, keys = self.kind, (self.kind.num_key_heads, self.kind.key_dim)
        values = (kind.num_heads, kind.value_dim)
        if kind.kind == "delta":
            query, key, value = channels.split((kind.key_width, kind.key_width, kind.value_width))
            query, key = recurrence.unit(query.view(keys)), recurrence.unit(key.view(keys))
            query = query * kind.key_dim**-0.5
            return RowParts(query, key, value.view(values), self.decay * step, rate)
        value, key, query = channels.split((kind.value_width, kind.key_width, kind.key_width))
        step = step.clamp(*kind.step_limits)
        value = value.view(values)
        skipped = self.skip[:, None] * value
        value = value * step[:, None]
        return RowParts(query.view(keys), key.view(keys), value, self.decay * step, skipped=skipped)

    def _read(
        self,
        row: RowParts,
        slot: int,
        path: list[int],
        memory: TensorStates,
        states: dict[tuple[int, tuple[int, ...]], Tensor],
    ) -> Tensor:
        """Return what a row reads (H, V), and keep what it changes.

        `path` are the places of the rows since the slot's state, the row's own last. `states` are those behind
        chunks that are not in the slot's state yet.
        """
        layer = memory.layers[self.layer]
        state = layer.states[memory.state_of[slot]]
        if len(path) > CHUNK:
            chunk, path = path[:CHUNK], path[CHUNK:]
            known = (slot, tuple(chunk))
            if known not in states:
                states[known] = layer.after(state, slot, chunk)
            state = states[known]
        before, last = path[:-1], path[-1]
        decay = row.log_decay
        if before:
            decay = layer.decays[slot, before[-1]] + decay
        layer.keys[slot, last], layer.decays[slot, last] = row.key, decay
        change = row.value
        if row.rate is not None:
            answer = self._asked(layer, row.key, decay, state, slot, before)
            change = row.rate[:, None] * (row.value - answer)
        layer.changes[slot, last] = change
        read = self._asked(layer, row.query, decay, state, slot, path)
        return read if row.skipped is None else read + row.skipped

    def _asked(
        self,
        layer: LayerStates,
        asked: Tensor,
        decay: Tensor,
        state: Tensor,
        slot: int,
        rows: list[int],
    ) -> Tensor:
        """Return what key heads (G, K) read of a state and of rows of its chunk: (H, V)."""
        keys = layer.keys[slot, rows][:, layer.key_heads]
        changes, decays = layer.changes[slot, rows], layer.decays[slot, rows]
        return recurrence.read(state, asked[layer.key_heads], decay, keys, changes, decays)

    def _gated(self, read: Tensor, gate: Tensor) -> Tensor:
        """Return what heads have read (R, H, V), normed and gated: by head and then, or gated and then by group."""
        if self.kind.kind == "delta":
            normed = ops.rms_norm(read, self.state_norm, self.eps)
            return normed.flatten(1) * ops.silu(gate)
        groups = (read.flatten(1) * ops.silu(gate)).view(len(read), self.kind.num_key_heads, -1)
        weight = self.state_norm.view(self.kind.num_key_heads, -1)
        return ops.rms_norm(groups, weight, self.eps).flatten(1)
