"""Recurrent states in torch tensors, which the torch reference model reads and writes.

n rows, H heads, G key heads, K key dimension, V value dimension, C channels, T taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from forerun.core.errors import CapacityError
from forerun.lab.torch import recurrence
from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.config import ModelConfig, RecurrentConfig


class LayerStates:
    """The states of one layer, and the rows beside them.

    `states` (states, H, K, V) and `history` (states, T - 1, C), what was convolved of the rows before it ends; for
    each slot the rows since: `raw` (n, C), `keys` (n, G, K), `changes` (n, H, V) and `decays` (n, H).
    """

    def __init__(
        self,
        kind: RecurrentConfig,
        num_channels: int,
        num_states: int,
        num_slots: int,
        num_rows: int,
        device: torch.device | str,
    ) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=device)

        self.kind = kind
        self.states = zeros(num_states, kind.num_heads, kind.key_dim, kind.value_dim)
        self.history = zeros(num_states, kind.kernel - 1, num_channels)
        self.raw = zeros(num_slots, num_rows, num_channels)
        self.keys = zeros(num_slots, num_rows, kind.num_key_heads, kind.key_dim)
        self.changes = zeros(num_slots, num_rows, kind.num_heads, kind.value_dim)
        self.decays = zeros(num_slots, num_rows, kind.num_heads)
        heads = torch.arange(kind.num_heads, device=device)
        shared = max(kind.num_heads // max(kind.num_key_heads, 1), 1)
        self.key_heads = heads % kind.num_key_heads if kind.tiled else heads // shared
        """The key head that each head reads."""

    @property
    def of_states(self) -> tuple[Tensor, Tensor]:
        """What a state is."""
        return self.states, self.history

    @property
    def of_rows(self) -> tuple[Tensor, ...]:
        """What is kept of rows."""
        return self.raw, self.keys, self.changes, self.decays

    def after(self, state: Tensor, slot: int, rows: list[int]) -> Tensor:
        """Return the state (H, K, V) after CHUNK rows of a slot, by their offsets."""
        keys = self.keys[slot, rows][:, self.key_heads]
        return recurrence.advanced(state, keys, self.changes[slot, rows], self.decays[slot, rows])


class TensorStates:
    """States of the recurrent layers of a model. Implements `model.cache.states.StateMemory`."""

    def __init__(
        self,
        config: ModelConfig,
        num_states: int,
        num_slots: int,
        num_rows: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """`num_rows` are those that a slot has beside its state."""
        width = config.hidden_size
        self.layers = {
            i: LayerStates(kind, kind.num_channels(width), num_states, num_slots, num_rows, device)
            for i, kind in enumerate(layer.recurrent for layer in config.layers)
            if kind is not None
        }
        self.num_rows = num_rows
        self.state_nbytes = sum(part.nbytes for part in self._parts()) // num_states
        self.rows_nbytes = sum(part.nbytes for part in self._row_parts()) // num_slots
        self.state_of = [-1] * num_slots
        self.rows_before = [0] * num_slots

    def place_state(self, slot: int, state: int, rows: int) -> None:
        """Make a state that of a slot; it belongs to so many rows."""
        self.state_of[slot], self.rows_before[slot] = state, rows

    def clear_state(self, state: int) -> None:
        """Make a state that of no rows."""
        for part in self._parts():
            part[state] = 0

    def copy_state(self, source: int, target: int) -> None:
        """Make a state what another is."""
        for part in self._parts():
            part[target] = part[source]

    def advance(self, slot: int, rows: int) -> None:
        """Bring the state of a slot one block further, to `rows` rows."""
        assert rows == self.rows_before[slot] + BLOCK_ROWS
        state = self.state_of[slot]
        chunk = list(range(BLOCK_ROWS))
        for layer in self.layers.values():
            layer.states[state] = layer.after(layer.states[state], slot, chunk)
            layer.history[state] = layer.raw[slot, BLOCK_ROWS - layer.kind.kernel + 1 : BLOCK_ROWS]
            for part in layer.of_rows:
                part[slot, :-BLOCK_ROWS] = part[slot, BLOCK_ROWS:].clone()
        self.rows_before[slot] = rows

    def offsets(self, slot: int, rows: Sequence[int]) -> list[int]:
        """Return the offsets of a slot's rows beside its state. Raises CapacityError for rows beyond those it has."""
        before = self.rows_before[slot]
        offsets = [row - before for row in rows]
        if offsets and not 0 <= min(offsets) <= max(offsets) < self.num_rows:
            raise CapacityError(
                f"a draft of more than {self.num_rows - BLOCK_ROWS} rows: draft fewer"
            )
        return offsets

    def move(self, slot: int, rows: Sequence[int], start: int) -> None:
        """Make rows start, start + 1, ... of a slot what `rows`, ascending and no lower, are."""
        source = self.offsets(slot, rows)
        target = self.offsets(slot, range(start, start + len(rows)))
        for part in self._row_parts():
            part[slot, target] = part[slot, source]

    def _parts(self) -> Iterator[Tensor]:
        for layer in self.layers.values():
            yield from layer.of_states

    def _row_parts(self) -> Iterator[Tensor]:
        for layer in self.layers.values():
            yield from layer.of_rows
