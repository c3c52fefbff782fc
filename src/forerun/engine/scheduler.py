"""Scheduling: which sequences run, and what gives way where blocks of keys and values run short.

Waiting sequences get cache slots when there is memory for their rows: by priority, those that may write only a few
tokens first, and else in the order they came. Every fourth place goes to the one that came first of all, so that none
waits for ever. Before each pass every running sequence takes the blocks of its own next rows; if none are left, the
youngest of the lowest priority is preempted. Drafts
take blocks after them in the same order, for which cached prefixes are given up; a draft that finds none is cut to the
rows that the blocks of its sequence have anyway. Nothing of it changes a token; each kind is counted, and logged once.
"""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.core import tree
from forerun.core.config import EngineConfig
from forerun.core.types import Seq
from forerun.engine.prefill import rank
from forerun.engine.sequence import SequenceStep
from forerun.model.cache.base import KVCache

SMALLER_TREES, SHORTER_DRAFTS, EVICTED = "smaller_trees", "shorter_drafts", "evicted_prefixes"
PREEMPTED, QUEUED = "preempted", "queued"
MEMORY_STEPS = {
    SMALLER_TREES: "draft trees are cut",
    SHORTER_DRAFTS: "drafts are shortened",
    EVICTED: "shared prefixes are evicted",
    PREEMPTED: "the youngest sequences are preempted, and go on later",
    QUEUED: "sequences wait until others have ended",
}
"""What is done where memory is tight."""
WORTH_A_NOTE = 128
"""Rows to read that are worth saying where a prompt parts from the ones before."""
WORTH_WAITING = 4
"""Rows to share for which a sequence waits for a pass."""
FIRST_COME = 4
"""Every so many places one goes to the sequence that came first."""
LOOKED_AT = 8
"""Waiting sequences of which one gets the next place: the others of them share rows that are being read."""
SPARE_AGAIN = 8
"""Blocks for each running sequence to grow into where a preempted one goes on: it would soon be preempted again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowBudgets:
    """Bounds of a pass's rows, apart for prompts and for drafts: neither takes from the other."""

    prefill: int
    """Rows of prompts, computed or from disk, of all sequences together, at most (`engine.prefill` shares them)."""
    draft: int
    """Nodes of each decoding sequence's draft. Its last token has a row besides."""

    @classmethod
    def of(cls, config: EngineConfig, draft_rows: int | None) -> RowBudgets:
        """Return the budgets that a configuration asks for; a cache may have room for only so many `draft_rows`."""
        draft = config.draft_budget if draft_rows is None else min(config.draft_budget, draft_rows)
        return cls(config.prefill_chunk, draft)


class Scheduler:
    """The queue and the running set. With `reuse` a sequence starts from the rows that the cache has already."""

    def __init__(self, cache: KVCache, *, reuse: bool) -> None:
        self.cache = cache
        self.reuse = reuse
        self.waiting: list[Seq] = []
        """In the order in which they get slots, but for those that came first of all."""
        self.running: list[Seq] = []
        """Running sequences, longest running first."""
        self.num_queried = self.num_reused = self.num_from_disk = self.num_computed = 0
        """Tokens of admitted sequences; of them those that the cache held already, were on disk, and were computed."""
        self.num_recomputed = 0
        """Rows that preempted sequences had, and that are computed again."""
        self.memory_steps: Counter[str] = Counter(dict.fromkeys(MEMORY_STEPS, 0))
        """How often each of `MEMORY_STEPS` was taken."""
        self._last_queued: Seq | None = None
        self._num_admitted = 0

    def add(self, seq: Seq) -> None:
        """Put a sequence into the queue."""
        insort(self.waiting, seq, key=_turn)

    def admit(self) -> None:
        """Give free slots to waiting sequences, leaving a block for each that runs to grow into."""
        while (seq := self._next()) is not None:
            spare = len(self.running) * (1 if seq.admitted_s is None else SPARE_AGAIN)
            opened = self.cache.open(seq.tokens, reuse=self._reuses(seq), spare=spare)
            if opened is None:
                if len(self.running) < self.cache.num_slots and seq is not self._last_queued:
                    self._last_queued = seq
                    self._count(QUEUED)
                return
            self.waiting.remove(seq)
            self._num_admitted += 1
            seq.slot, num_reused = opened
            seq.admitted_s = seq.admitted_s or time.perf_counter()
            self.num_queried += len(seq.tokens)
            self.num_reused += num_reused
            self.num_recomputed += max(seq.num_lost - num_reused, 0)
            seq.num_from_disk, seq.num_reused = 0, min(num_reused, seq.num_prompt)
            if seq.num_prompt - num_reused >= WORTH_A_NOTE:
                seq.parts_at = self.cache.pool.parting(seq.tokens)
            self.running.append(seq)

    def read_from_disk(self, seq: Seq, most_rows: int) -> int:
        """Read rows of a sequence whose prompt is being read; fewer than asked for if there are no more."""
        before = self.cache.length(seq.slot)
        num_read = self.cache.read_from_disk(seq.slot, most_rows)
        num_more = self.cache.length(seq.slot) - before
        self.num_from_disk += num_more
        seq.num_from_disk += num_more
        seq.num_reused = min(seq.num_reused + num_more, seq.num_prompt)
        return num_read

    def release(self, seq: Seq) -> None:
        """Take a sequence off the queue or the running set."""
        if seq in self.waiting:
            self.waiting.remove(seq)
            return
        self.running.remove(seq)
        self.cache.close(seq.slot, seq.tokens, seq.num_instructions)
        seq.slot = -1

    def _next(self) -> Seq | None:
        """Find who gets the next place; none while all wait for rows that are being read.

        Texts that are read for their vectors leave a place to others.
        """
        num_free = self.cache.num_slots - len(self.running)
        is_last = num_free == 1 < self.cache.num_slots
        first = self.waiting[:LOOKED_AT] if num_free else []
        if first and self._num_admitted % FIRST_COME == FIRST_COME - 1:
            first = [min(self.waiting, key=lambda seq: seq.id), *first]
        for seq in first:
            if not (is_last and seq.params.pooling) and not self._can_share_soon(seq):
                return seq
        return None

    def preempt(self, seq: Seq) -> None:
        """Send a running sequence back to the queue, before new ones; its slot and its blocks can be had by others."""
        seq.num_lost = self.cache.length(seq.slot)
        self.release(seq)
        self.add(seq)
        self._count(PREEMPTED)

    def fit(
        self, steps: Sequence[SequenceStep], preempt: Callable[[int], None]
    ) -> list[SequenceStep]:
        """Reserve the rows of a pass; return the sequences that were not preempted for it.

        Committed tokens come first: the youngest of the lowest priority are preempted, `preempt` being called with
        their ids, until the others have their rows. A draft that then finds no block is cut to what the blocks of its
        sequence hold.
        """
        ready = []
        for step in steps:
            while step.seq.slot >= 0 and not self.cache.reserve(step.seq.slot, len(step.tokens)):
                last = max(reversed(self.running), key=lambda seq: seq.params.priority)
                assert last is not step.seq or len(self.running) > 1, "one always fits"
                preempt(last.id)
            ready.append(step)
        ready = [step for step in ready if step.seq.slot >= 0]
        for step in ready:
            slot, draft, num_tokens = step.seq.slot, step.draft, len(step.tokens)
            if not self.cache.reserve(slot, num_tokens + len(draft.tokens)):
                is_chain = draft.parents == tree.chain(len(draft))
                self._count(SHORTER_DRAFTS if is_chain else SMALLER_TREES)
                step.draft = draft.trim(self.cache.free_rows(slot) - num_tokens)
        if (num_evicted := self.cache.pool.num_evicted) > self.memory_steps[EVICTED]:
            self._count(EVICTED, num_evicted - self.memory_steps[EVICTED])
        return ready

    def _count(self, step: str, count: int = 1) -> None:
        """Count a step of `MEMORY_STEPS`, and log its first occurrence."""
        if not self.memory_steps[step]:
            level = logging.WARNING if step in (PREEMPTED, QUEUED) else logging.INFO
            _log.log(level, "memory is tight: %s (logged once)", MEMORY_STEPS[step])
        self.memory_steps[step] += count

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
            shared = committed + WORTH_WAITING  # of the last token it needs more than the row
            if len(seq.tokens) > shared and other.tokens[:shared] == seq.tokens[:shared]:
                return True
        return False


def _turn(seq: Seq) -> tuple[int, bool, int, int]:
    """Order the queue: by priority, who was preempted first, by the tokens that may be written, by age."""
    priority, work = rank(seq, 0)
    return priority, seq.admitted_s is None, work, seq.id
