"""Scheduling: waiting sequences get cache slots in the order they came, when there is memory for their rows."""

from __future__ import annotations

from collections import deque

from forerun.core.types import Seq
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import common_prefix

WORTH_WAITING = 4
"""Rows to share for which a sequence waits for a pass."""


class Scheduler:
    """The queue and the running set. With `reuse` a sequence starts from the rows that the cache has already."""

    def __init__(self, cache: KVCache, *, reuse: bool) -> None:
        self.cache = cache
        self.reuse = reuse
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        """Running sequences, longest running first."""
        self.num_queried = self.num_reused = 0
        """Tokens of admitted sequences, and how many of them the cache held already."""
        self.num_preempted = self.num_queued = 0
        """How often a sequence lost its slot, and how many had to wait for memory though a slot was free."""
        self._last_queued: Seq | None = None

    def add(self, seq: Seq) -> None:
        """Put a new sequence at the end of the queue."""
        self.waiting.append(seq)

    def admit(self) -> None:
        """Give free slots to waiting sequences, leaving a block for each that runs to grow into."""
        while self.waiting and not self._can_share_soon(self.waiting[0]):
            seq = self.waiting[0]
            spare = len(self.running)
            opened = self.cache.open(seq.tokens, reuse=self._reuses(seq), spare=spare)
            if opened is None:
                if len(self.running) < self.cache.num_slots and seq is not self._last_queued:
                    self._last_queued = seq
                    self.num_queued += 1
                return
            self.waiting.popleft()
            seq.slot, num_reused = opened
            self.num_queried += len(seq.tokens)
            self.num_reused += num_reused
            seq.num_reused = min(num_reused, seq.num_prompt)
            self.running.append(seq)

    def release(self, seq: Seq) -> None:
        """Take a sequence off the queue or the running set."""
        if seq in self.waiting:
            self.waiting.remove(seq)
            return
        self.running.remove(seq)
        self.cache.close(seq.slot, seq.tokens)
        seq.slot = -1

    def preempt(self, seq: Seq) -> None:
        """Send a running sequence back to the head of the queue; its slot and its blocks can be had by others."""
        self.release(seq)
        self.waiting.appendleft(seq)
        self.num_preempted += 1

    def pending(self, seq: Seq) -> list[int]:
        """Return a running sequence's tokens that are not in its cache yet; one unless its prompt is being read."""
        return seq.tokens[self.cache.length(seq.slot) :]

    def _reuses(self, seq: Seq) -> bool:
        params = seq.params  # both of them need every row
        return self.reuse and params.prompt_logprobs is None and params.pooling is None

    def _can_share_soon(self, seq: Seq) -> bool:
        """Return True while a running sequence reads rows that this one needs: waiting saves reading them twice."""
        if not self._reuses(seq):
            return False
        for other in self.running:
            committed = self.cache.length(other.slot)
            if committed + 1 >= len(other.tokens):
                continue  # it has read its prompt
            shared = common_prefix(other.tokens[committed:], seq.tokens[committed:-1])
            if shared >= WORTH_WAITING and other.tokens[:committed] == seq.tokens[:committed]:
                return True
        return False
