"""Who runs: waiting sequences get cache slots in the order they came."""

from __future__ import annotations

from collections import deque

from forerun.cache.base import KVCache
from forerun.core.types import Seq


class Scheduler:
    """The queue and the running set. With `reuse` a sequence starts from the rows that the cache has already."""

    def __init__(self, cache: KVCache, *, reuse: bool) -> None:
        self.cache = cache
        self.reuse = reuse
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self.num_queried = self.num_reused = 0
        """Tokens of admitted sequences, and how many of them the cache held already."""

    def add(self, seq: Seq) -> None:
        """Queue a sequence."""
        self.waiting.append(seq)

    def admit(self) -> None:
        """Give free slots to waiting sequences."""
        while self.waiting and not self._is_being_prefilled(self.waiting[0]):
            seq = self.waiting[0]
            reuse = self.reuse and seq.params.prompt_logprobs is None  # those need every row
            opened = self.cache.open(seq.tokens, reuse=reuse)
            if opened is None:
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
        """Send a running sequence back to the head of the queue; its slot becomes free."""
        self.release(seq)
        self.waiting.appendleft(seq)

    def pending(self, seq: Seq) -> list[int]:
        """Tokens of a running sequence that are not in its cache yet; one unless its prompt is being read."""
        return seq.tokens[self.cache.length(seq.slot) :]

    def _is_being_prefilled(self, seq: Seq) -> bool:
        """True while a running sequence reads this very prompt: waiting for it saves reading it again (n > 1)."""
        return self.reuse and any(
            other.tokens == seq.tokens and len(self.pending(other)) > 1 for other in self.running
        )
