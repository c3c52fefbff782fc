"""When blocks of keys and values run short: drafts give way first, and no token changes.

The steps, each logged once and counted: smaller draft trees, shorter drafts, evicted prefixes, a draft model's rows,
preempted sequences, and sequences that wait. Nothing of it changes a token.

Committed rows come first: the blocks that every running sequence needs for its own next token are set aside before a
draft gets any. What is left goes to drafts by expected tokens a block. A draft that finds no free block is cut to the
rows its sequence's last block still has, unless evicting a shared prefix for it gains more time than it loses:

    tokens that the cut nodes would bring x seconds of a token
        >  chance that the prefix is found again x its rows x seconds of reading a row of a prompt

All of these are measured as the engine runs. Preempting, which throws away rows that are certainly needed again, is
left for rows that must be there, and takes the youngest sequence (`Engine._make_room`); before, a draft model frees
what it has read of the youngest.

Source: SpecMemo (arXiv 2506.01986) shrinks the speculation to a memory budget; the choice by expected tokens over
expected time is ours.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core import tree
from forerun.core.means import DecayedMean
from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.engine.scheduler import Scheduler
from forerun.engine.stats import SpecStats
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import BLOCK_ROWS

SMALLER_TREES = "smaller_trees"
SHORTER_DRAFTS = "shorter_drafts"
EVICTED = "evicted_prefixes"
UNDRAFTED = "draft_model_rows"
PREEMPTED = "preempted"
QUEUED = "queued"
PRESSURE_STEPS = {
    SMALLER_TREES: "draft trees are cut",
    SHORTER_DRAFTS: "drafts are shortened",
    EVICTED: "shared prefixes are evicted",
    UNDRAFTED: "the draft model's rows of the youngest sequences are freed",
    PREEMPTED: "the youngest sequences are preempted, and go on later",
    QUEUED: "sequences wait until others have ended",
}
"""In the order in which they are taken where all cost the same."""
COST_MEMORY = 0.95
PRIOR_ROWS = 2 * BLOCK_ROWS
"""Rows of prompts, half of them found, that the chance to find a prefix again begins with."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Need:
    """A running sequence before a pass: the tokens whose rows it must have, and its draft."""

    seq: Seq
    tokens: Sequence[int]
    draft: Draft

    @property
    def pending(self) -> int:
        """Rows it must have."""
        return len(self.tokens)


class MemoryPressure:
    """Shares the blocks of a cache among drafts, prefixes and sequences; `taken` counts the steps."""

    def __init__(self, cache: KVCache, scheduler: Scheduler, stats: SpecStats) -> None:
        self.cache, self.scheduler, self.stats = cache, scheduler, stats
        self.taken: Counter[str] = Counter(dict.fromkeys(PRESSURE_STEPS, 0))
        self._token_s, self._prompt_row_s = DecayedMean(COST_MEMORY), DecayedMean(COST_MEMORY)

    def learn(self, seconds: float, num_emitted: int, num_prompt_rows: int) -> None:
        """Learn what a step took: seconds a token if it only decodes, else seconds a row of a prompt.

        What the cache and the scheduler did by themselves is counted.
        """
        evicted = sum(pool.num_evicted for pool in self.cache.pool.shared.pools)
        self.note(EVICTED, evicted - self.taken[EVICTED])
        self.note(PREEMPTED, self.scheduler.num_preempted - self.taken[PREEMPTED])
        self.note(QUEUED, self.scheduler.num_queued - self.taken[QUEUED])
        if num_prompt_rows:
            self._prompt_row_s.record(seconds / num_prompt_rows)
        elif num_emitted:
            self._token_s.record(seconds / num_emitted)

    def fit(self, needs: Sequence[Need]) -> list[Draft]:
        """Return the drafts, cut where there are no blocks for them."""
        cache, drafts = self.cache, [need.draft for need in needs]
        least = [cache.lacking(need.seq.slot, need.pending) for need in needs]
        extra = [
            cache.lacking(need.seq.slot, need.pending + len(need.draft)) - must
            for need, must in zip(needs, least, strict=True)
        ]
        left = cache.pool.num_free - sum(least)
        if sum(extra) <= left:
            return drafts
        idle, left = cache.pool.num_idle + min(left, 0), max(left, 0)
        rooms = [
            cache.room(need.seq.slot, must) - need.pending
            for need, must in zip(needs, least, strict=True)
        ]
        gains = [self._gain(need.draft, room) for need, room in zip(needs, rooms, strict=True)]
        order = [i for i in range(len(needs)) if extra[i]]
        for i in sorted(order, key=lambda i: gains[i] / extra[i], reverse=True):
            evicted = max(0, extra[i] - left)
            if evicted and (evicted > idle or not self._evicts(gains[i], evicted)):
                drafts[i] = self._cut(drafts[i], rooms[i])
            else:
                left, idle = left - extra[i] + evicted, idle - evicted
        return drafts

    def reclaim(self) -> bool:
        """Free a draft model's rows of a sequence, which then gets no drafts; return whether there were any."""
        freed = self.cache.pool.shared.reclaim()
        self.note(UNDRAFTED, freed)
        return freed

    def note(self, step: str, count: int = 1) -> None:
        """Count a step of memory pressure, and log its first occurrence."""
        if count and not self.taken[step]:
            level = logging.WARNING if step in (PREEMPTED, QUEUED) else logging.INFO
            _log.log(level, "memory is tight: %s (logged once)", PRESSURE_STEPS[step])
        self.taken[step] += count

    def _cut(self, draft: Draft, room: int) -> Draft:
        is_chain = draft.parents == tree.chain(len(draft))
        self.note(SHORTER_DRAFTS if is_chain else SMALLER_TREES)
        return draft.trim(room) if room > 0 else EMPTY_DRAFT

    def _gain(self, draft: Draft, room: int) -> float:
        """Return the tokens that the nodes beyond the first `room` are expected to bring."""
        rate = (self.stats.accepted + 1) / (self.stats.drafted + 2)
        own = draft.confidence or (rate,) * len(draft)
        return sum(tree.path_products(draft.parents, own)[max(room, 0) :])

    def _evicts(self, gain: float, num_blocks: int) -> bool:
        """Return whether so many tokens save more time than the idle blocks are expected to."""
        found = (self.scheduler.num_reused + PRIOR_ROWS / 2) / (
            self.scheduler.num_queried + PRIOR_ROWS
        )
        lost_s = found * num_blocks * BLOCK_ROWS * self._prompt_row_s.value
        return gain * self._token_s.value > lost_s
