"""Recurrent states: which one is whose, and the checkpoints that let a sequence begin behind a known prefix.

A state belongs to a number of rows, a whole number of blocks: `rows[slot]` says how many, and the rows behind them
lie beside the state until it goes on. There are `num_slots` states and some more. Those that no slot has
are checkpoints of a prefix, known by the block of keys and values that ends it, or free; the checkpoint that was
least recently used is given up first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forerun.model.cache.blocks import BLOCK_ROWS

CHECKPOINT_ROWS = 512
"""Rows of a prompt between its checkpoints, besides the last one."""

DRAFT_ROWS = BLOCK_ROWS
"""Rows of a draft at most: one passes the end of a block once."""


class StateMemory(Protocol):
    """Where the states lie, and the rows of each slot that they have not been brought up to."""

    state_nbytes: int
    """Bytes of one state, of all layers."""
    rows_nbytes: int
    """Bytes of the rows that a slot keeps beside its state."""

    def place_state(self, slot: int, state: int, rows: int) -> None:
        """Make a state that of a slot; it belongs to so many rows."""
        ...

    def clear_state(self, state: int) -> None:
        """Make a state that of no rows."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Make a state what another is."""
        ...

    def advance(self, slot: int, rows: int) -> None:
        """Bring the state of a slot one block further, to `rows` rows; later rows are kept."""
        ...


class StateTable:
    """States of `num_slots` slots, and room for `num_checkpoints` more."""

    def __init__(self, memory: StateMemory, num_slots: int, num_checkpoints: int) -> None:
        self.memory = memory
        self.num_states = num_slots + num_checkpoints
        self.rows = [0] * num_slots
        self._states = list(range(num_slots))
        self._free = list(range(num_slots, self.num_states))
        self._checkpoints: dict[int, int] = {}
        """States by the last block of their rows, least recently used first."""
        self._last_checkpoint = [0] * num_slots
        self._num_taken = [0] * self.num_states
        """How often each state has become another one."""
        for slot in range(num_slots):
            memory.place_state(slot, slot, 0)

    def nbytes(self) -> int:
        """Return the bytes of all states and of the rows beside them."""
        checkpoints = (self.num_states - len(self.rows)) * self.memory.state_nbytes
        return self.nbytes_of(len(self.rows)) + checkpoints

    def nbytes_of(self, num_slots: int) -> int:
        """Return the bytes of the states of some slots, and of the rows beside them."""
        return num_slots * (self.memory.state_nbytes + self.memory.rows_nbytes)

    def has(self, block: int) -> bool:
        """Return whether there is a checkpoint behind a block."""
        return block in self._checkpoints

    def checkpoint_of(self, block: int) -> tuple[int, int] | None:
        """Return the state of the checkpoint behind a block, and the number of its use; None if there is none."""
        state = self._checkpoints.get(block)
        return None if state is None else (state, self._num_taken[state])

    def restore(self, block: int, fill: Callable[[int], bool]) -> bool:
        """Make sure of a checkpoint behind a block: one that is there, or of a state that `fill` writes.

        Returns False if that fails, or no state is free.
        """
        if self.has(block):
            return True
        if (state := self._take()) is None:
            return False
        if not fill(state):
            self._free.append(state)
            return False
        self._checkpoints[block] = state
        return True

    def open(self, slot: int, block: int | None, rows: int) -> None:
        """Give a slot the state of the checkpoint behind a block, after so many rows, or an empty one."""
        if block is not None:
            self._checkpoints[block] = self._checkpoints.pop(block)  # the most recently used
        state = self._states[slot] if self._states[slot] >= 0 else self._take()
        assert state is not None, "a slot has a state, or there is one that no slot has"
        if block is None:
            self.memory.clear_state(state)
        elif self.has(block):
            self.memory.copy_state(self._checkpoints[block], state)
        self._states[slot], self.rows[slot], self._last_checkpoint[slot] = state, rows, rows
        self.memory.place_state(slot, state, rows)

    def close(self, slot: int, block: int | None) -> None:
        """Keep a slot's state as the checkpoint behind a block, if it is not known there yet."""
        state = self._states[slot]
        if block is None or self.has(block):
            self._free.append(state)
        else:
            self._checkpoints[block] = state
        self._states[slot], self.rows[slot] = -1, 0

    def advance(self, slot: int, rows: int) -> None:
        """Bring a slot's state up to the whole blocks of its first `rows` rows."""
        num_full = rows // BLOCK_ROWS * BLOCK_ROWS
        if num_full > self.rows[slot]:
            self.memory.advance(slot, num_full)
            self.rows[slot] = num_full

    def clear(self, slot: int) -> None:
        """Make a slot's state that of no rows."""
        self.memory.clear_state(self._states[slot])
        self.memory.place_state(slot, self._states[slot], 0)
        self.rows[slot] = self._last_checkpoint[slot] = 0

    def is_due(self, slot: int, *, is_prompt_read: bool) -> bool:
        """Return whether a copy of the slot's state should be kept: every CHECKPOINT_ROWS, and at the prompt's end."""
        beyond = self.rows[slot] - self._last_checkpoint[slot]
        return beyond > 0 if is_prompt_read else beyond >= CHECKPOINT_ROWS

    def checkpoint(self, slot: int, block: int) -> None:
        """Keep a copy of a slot's state as the checkpoint behind a block, if there is a state for it."""
        self._last_checkpoint[slot] = self.rows[slot]
        if not self.has(block) and (state := self._take()) is not None:
            self.memory.copy_state(self._states[slot], state)
            self._checkpoints[block] = state

    def forget(self, block: int) -> None:
        """Give up the checkpoint behind a block that is no longer known."""
        if (state := self._checkpoints.pop(block, None)) is not None:
            self._free.append(state)

    def _take(self) -> int | None:
        """Return a state that is free, or else that of the checkpoint least recently used; None if slots have all."""
        if not self._free and not self._checkpoints:
            return None
        state = (
            self._free.pop() if self._free else self._checkpoints.pop(next(iter(self._checkpoints)))
        )
        self._num_taken[state] += 1
        return state
