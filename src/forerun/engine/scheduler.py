"""Who runs: waiting sequences get cache slots in the order they came.

A sequence starts from the longest prefix of its prompt that some slot still holds. A freed slot
keeps its rows until it is taken, so a chat's next turn, or a prompt with the same beginning, is not
computed twice. The row law makes reuse exact: a row is the same whoever computed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from forerun.cache.base import KVCache
from forerun.core.types import Seq


class Scheduler:
    """Queue, running set and cache slots."""

    def __init__(self, cache: KVCache, *, reuse_prefixes: bool) -> None:
        self.cache = cache
        self.reuse_prefixes = reuse_prefixes
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self._free: list[int] = list(range(cache.num_slots))  # least recently freed first
        self._resident: list[list[int]] = [[] for _ in range(cache.num_slots)]

    def add(self, seq: Seq) -> None:
        """Queue a sequence."""
        self.waiting.append(seq)

    def admit(self) -> list[Seq]:
        """Give free slots to waiting sequences; return those that were admitted."""
        admitted = []
        while self.waiting and self._free and not self._is_being_prefilled(self.waiting[0]):
            seq = self.waiting.popleft()
            self._place(seq)
            self.running.append(seq)
            admitted.append(seq)
        return admitted

    def release(self, seq: Seq) -> None:
        """Take a sequence off the running set; its slot keeps the rows for whoever can use them."""
        if seq in self.waiting:
            self.waiting.remove(seq)
            return
        self.running.remove(seq)
        self._resident[seq.slot] = seq.tokens[: self.cache.length(seq.slot)]
        self._free.append(seq.slot)
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
        return self.reuse_prefixes and any(
            other.tokens == seq.tokens and len(self.pending(other)) > 1 for other in self.running
        )

    def _place(self, seq: Seq) -> None:
        """Choose a slot and make the rows of the longest known prefix its committed rows."""
        owners = {other.slot: other.tokens for other in self.running}
        source, length = -1, 0
        for slot in range(self.cache.num_slots) if self.reuse_prefixes else ():
            resident = owners.get(slot, self._resident[slot])[: self.cache.length(slot)]
            common = _common_prefix(resident, seq.tokens[:-1])  # one token is left to compute
            if common > length:
                source, length = slot, common
        seq.slot = source if source in self._free else self._free[0]
        self._free.remove(seq.slot)
        if length and seq.slot != source:
            self.cache.copy(source, seq.slot, length)
        self.cache.truncate(seq.slot, length)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
