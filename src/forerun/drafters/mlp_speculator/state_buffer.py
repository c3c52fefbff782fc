"""The results of a target's last passes, in a ring of fixed size: the states its head read, and the tokens that came.

A state is worth the whole distribution: the head's rows make it again, of any tokens. Rows of one sequence lie side by
side; a run of `depth + 1` of them is one thing to learn from.

R rows, N rows of the ring, D width of the target, K depth.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from forerun.core.types import Outcome

CHUNK = 64
"""Rows of a sequence that are laid down together; a run does not cross the border."""


class TextRuns(NamedTuple):
    """Rows to learn from: the state before the first guess, and what followed."""

    first: Tensor
    """States from which chains start, (R, D) fp32."""
    tokens: Tensor
    """(R, K) int64: read one after the other."""
    after: Tensor
    """(R, K, D) fp32: the target's states after each."""
    log_normaliser: Tensor
    """(R, K) fp32, of the target's logits there."""
    best: Tensor
    """(R, K) int64: the target's likeliest token there."""


class StateBuffer:
    """A ring of the target's states and tokens of all sequences; the oldest rows are overwritten."""

    def __init__(self, num_rows: int, width: int) -> None:
        self._states = torch.zeros(num_rows, width, dtype=torch.float16)
        self._tokens = torch.zeros(num_rows, dtype=torch.int64)
        self._best = torch.zeros(num_rows, dtype=torch.int64)
        self._normaliser = torch.zeros(num_rows)
        self._chunk = torch.full((num_rows,), -1)
        self._num_chunks = 0
        self._open: dict[int, list[tuple[Tensor, ...]]] = {}
        self.count = 0
        """Rows stored so far, overwritten ones included."""

    def add(self, seq_id: int, outcome: Outcome, rows: list[int], tokens: tuple[int, ...]) -> None:
        """Store rows of an outcome, each with the token that came next."""
        assert outcome.hidden is not None
        assert outcome.top is not None
        assert outcome.top.log_normaliser is not None
        top = [
            row - len(outcome.hidden) + len(outcome.top.ids) for row in rows
        ]  # of a prompt: its last
        best = torch.from_numpy(outcome.top.ids[top, 0])
        normaliser = torch.from_numpy(outcome.top.log_normaliser[top])
        parts = self._open.setdefault(seq_id, [])
        states = outcome.hidden[rows].to("cpu", torch.float16)
        parts.append((states, torch.tensor(tokens), best, normaliser))
        if sum(len(part[0]) for part in parts) >= CHUNK:
            self.end(seq_id)

    def end(self, seq_id: int) -> None:
        """Store the rows of a sequence that are still collected."""
        parts = self._open.pop(seq_id, None)
        if not parts:
            return
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        num = min(len(columns[0]), len(self._states))
        at = (self.count + torch.arange(num)) % len(self._states)
        rings = (self._states, self._tokens, self._best, self._normaliser)
        for ring, column in zip(rings, columns, strict=True):
            ring[at] = column[:num]
        self._chunk[at] = self._num_chunks
        self._num_chunks += 1
        self.count += num

    def clear(self) -> None:
        """Drop all rows, as when the learned map is given up."""
        self._chunk.fill_(-1)
        self._open.clear()

    def starts(self, depth: int, since: int = 0) -> Tensor:
        """Return the numbers (R,) of rows from `since` on that a run begins with."""
        size = len(self._states)
        first = max(since, self.count - size, 0)
        numbers = torch.arange(first, max(self.count - depth, first))
        chunk = self._chunk[numbers % size]
        return numbers[(chunk >= 0) & (chunk == self._chunk[(numbers + depth) % size])]

    def runs(self, starts: Tensor, depth: int) -> TextRuns:
        """Gather the runs that begin at these rows."""
        size = len(self._states)
        after = (starts[:, None] + torch.arange(1, depth + 1)) % size
        before = (starts[:, None] + torch.arange(depth)) % size
        return TextRuns(
            self._states[starts % size].float(),
            self._tokens[before],
            self._states[after].float(),
            self._normaliser[after],
            self._best[after],
        )

    def nbytes(self) -> int:
        """Count the bytes of the ring."""
        rings = (self._states, self._tokens, self._best, self._normaliser, self._chunk)
        return sum(ring.nbytes for ring in rings)
