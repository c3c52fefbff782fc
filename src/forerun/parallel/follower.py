"""What all other ranks do: hold their part of the model, and compute what rank 0 tells them until it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from forerun.core.batch import Segment
from forerun.core.errors import ForerunError
from forerun.model.cache.native import NativeCache
from forerun.parallel.group import Group
from forerun.parallel.head import SplitHead
from forerun.parallel.split import Part
from forerun.parallel.tensor import PartDecoder


class Follower:
    """A rank that obeys: caches by rank 0's numbers, and its part of the passes and of the head."""

    def __init__(self, group: Group, decoder: PartDecoder, parts: Sequence[Part]) -> None:
        self._group, self._decoder = group, decoder
        self._caches: dict[int, NativeCache] = {}
        self._head = SplitHead(group, decoder.native, [part.tokens for part in parts])
        self._width = decoder.config.hidden_size

    def run(self) -> None:
        """Obey until rank 0 ends; if this rank fails, all end, and rank 0 says why.

        Signals are rank 0's business: it lets running requests finish, and needs this rank for it.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        link = self._group.follower
        does: dict[str, Callable[..., None]] = {
            "ready": self._ready,
            "pass": self._compute,
            "head": self._topk,
        }
        try:
            while (order := link.receive())[0] != "end":
                does[order[0]](*order[1:])
        except Exception as error:
            link.fail(str(error) if isinstance(error, ForerunError) else repr(error))

    def _ready(self) -> None:
        self._group.exchange(np.zeros(1, np.float32))

    def _compute(
        self,
        told: list[list],
        number: int,
        rows: list[list],
        sublayers: list[int],
    ) -> None:
        for cache, what, *how in told:
            self._change(cache, what, how)
        segments = [
            Segment(slot, base, tuple(tokens), parents and tuple(parents), first, stop)
            for slot, base, tokens, parents, first, stop in rows
        ]
        num_rows = sum(s.num_rows for s in segments)
        hidden = np.empty((num_rows, self._width), np.float32)
        tapped = np.empty((0, num_rows, self._width), np.float32)
        cache = self._caches[number].native
        with suppress(IndexError):  # rows that do not fit: rank 0 has found the same
            self._decoder.native.forward(cache, segments, hidden, hidden, [], tapped, sublayers)

    def _change(self, number: int, what: str, how: list) -> None:
        if what == "new":
            self._caches[number] = self._decoder.new_cache(*how)
        elif what == "forget":
            del self._caches[number]
        else:
            getattr(self._caches[number].native, what)(*how)

    def _topk(self, num_rows: int, k: int, with_norm: bool, with_logits: bool) -> None:
        rows = np.zeros((num_rows, self._width), np.float32)
        self._head.topk(rows, k, with_norm, with_logits)
