"""The target's states over texts, computed by the target as it is served, in passes as long as a prompt's.

Nothing is written to disk. States are held in memory while there is room, the oldest dropped first, so that what fits
is computed once and the rest once an epoch. They are rounded to fp16 at once: whether they were held changes nothing.

R rows of a text, D hidden width, T layers that are tapped.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core.batch import Batch, Segment
from forerun.core.errors import CapacityError
from forerun.lab.train.replies import Reply
from forerun.model.model import Model

CHUNK = 128
"""Rows of a pass."""


@dataclass(frozen=True, slots=True)
class States:
    """Of a text's rows from `start` on. Row r has read token r, and says what token r + 1 may be."""

    start: int
    last: Tensor
    """(R, D) fp16, what the head reads."""
    taps: Tensor
    """(R, T D) fp16, layers side by side."""
    log_normaliser: Tensor
    """(R,) fp32, of the logits over the whole vocabulary."""
    best: Tensor
    """(R,) int64, the target's likeliest token."""

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(t.nbytes for t in (self.last, self.taps, self.log_normaliser, self.best))


class StateReader:
    """Computes and holds states: of all rows if a drafter looks back at them, else of those that are learned from."""

    def __init__(
        self, model: Model, layers: tuple[int, ...], *, whole: bool, max_len: int, max_nbytes: int
    ) -> None:
        self.model, self.layers, self.whole, self.max_nbytes = model, layers, whole, max_nbytes
        self.num_computed = 0
        """Tokens the target has read."""
        self._cache = model.new_cache(1, max_len)
        self._held: OrderedDict[str, States] = OrderedDict()
        self._nbytes = 0

    def __call__(self, reply: Reply) -> States:
        """The states of a text. Raises CapacityError if it is longer than `max_len`."""
        held = self._held.get(reply.key)
        if held is not None:
            return held
        states = self._compute(reply)
        self._held[reply.key] = states
        self._nbytes += states.nbytes
        while self._nbytes > self.max_nbytes and len(self._held) > 1:
            self._nbytes -= self._held.popitem(last=False)[1].nbytes
        return states

    @torch.no_grad()
    def _compute(self, reply: Reply) -> States:
        tokens, cache = reply.tokens, self._cache
        if len(tokens) > cache.max_len:
            raise CapacityError(f"a text of {len(tokens)} tokens does not fit {cache.max_len}")
        cache.truncate(0, 0)
        lasts, taps = [], []
        for at in range(0, len(tokens), CHUNK):
            part = tokens[at : at + CHUNK]
            hidden = self.model.forward(Batch((Segment(0, at, part),)), cache, self.layers)
            cache.keep(0, range(len(part)))
            lasts.append(hidden.last)
            taps.append(torch.cat(hidden.taps, -1) if self.layers else _no_taps(part))
        self.num_computed += len(tokens)
        start = 0 if self.whole else reply.first - 1
        last = torch.cat(lasts)[start:].half()
        top = self.model.topk(last.float(), 1, log_normaliser=True)
        assert top.log_normaliser is not None
        normaliser, best = map(torch.from_numpy, (top.log_normaliser, top.ids[:, 0]))
        return States(start, last, torch.cat(taps)[start:].half(), normaliser, best)


def _no_taps(rows: tuple[int, ...]) -> Tensor:
    """Taps of no layer, (R, 0)."""
    return torch.empty(len(rows), 0)
