"""What all other ranks do: hold their part of the model, and compute what rank 0 tells them until it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from forerun.core.errors import ForerunError
from forerun.parallel import link
from forerun.parallel.cache import CacheCopies, unpacked
from forerun.parallel.group import RankGroup
from forerun.parallel.head import SplitHead
from forerun.parallel.split import Part
from forerun.parallel.tensor import PartDecoder

Commands = Mapping[str, Callable[..., None]]


def run_commands(leader: link.Follower, commands: Commands) -> None:
    """Run the commands of rank 0 until it ends; if this rank fails, all end, and rank 0 reports the error.

    SIGINT and SIGTERM are ignored: rank 0 lets running requests finish, and needs this rank for it.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    try:
        while (command := leader.receive())[0] != "end":
            commands[command[0]](*command[1:])
    except Exception as error:
        leader.fail(str(error) if isinstance(error, ForerunError) else repr(error))


class TensorFollower:
    """A rank's part of the passes and of the head, where layers are cut."""

    def __init__(self, group: RankGroup, decoder: PartDecoder, parts: Sequence[Part]) -> None:
        self._group, self._decoder = group, decoder
        self._caches = CacheCopies(decoder.new_cache)
        self._head = SplitHead(group, decoder.native, [part.tokens for part in parts])
        self._width = decoder.config.hidden_size
        self.commands: Commands = {"ready": self._ready, "pass": self._compute, "head": self._topk}

    def _ready(self) -> None:
        self._group.exchange(np.zeros(1, np.float32))

    def _compute(self, changes: list[Any], cache: int, rows: list[Any]) -> None:
        self._caches.follow(changes)
        segments = unpacked(rows)
        num_rows = sum(s.num_rows for s in segments)
        hidden = np.empty((num_rows, self._width), np.float32)
        aux = np.empty((0, num_rows, self._width), np.float32)
        cache_copy = self._caches[cache].native
        with suppress(IndexError):  # rows that do not fit: rank 0 has found the same
            self._decoder.native.forward(cache_copy, segments, hidden, hidden, [], aux)

    def _topk(self, num_rows: int, k: int, with_norm: bool, with_logits: bool) -> None:
        rows = np.zeros((num_rows, self._width), np.float32)
        self._head.topk(rows, k, with_norm, with_logits)
