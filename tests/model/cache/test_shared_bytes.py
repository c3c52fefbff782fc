"""Two caches with blocks of different sizes that share their bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import BLOCK_ROWS
from tests.model.cache.test_caches import BLOCKS, HEADS, KINDS, LAYERS, MAX_LEN, WIDTH, new_cache

TEXTS = [[i % n for i in range(MAX_LEN)] for n in (2, 3)]


def new_pair(
    kind: str, kv: str, num_blocks: int, reclaim: Callable[[], bool] = lambda: False
) -> tuple[KVCache, KVCache]:
    """A cache of so many blocks, and one whose blocks are half or twice as large."""
    host = new_cache(kind, kv, num_blocks)
    guest = new_cache(kind, "fp16" if kv == "fp32" else "fp32")
    guest.join(host, reclaim)
    return host, guest


class SharedBytesMachine(RuleBasedStateMachine):
    """Both caches hold what was written to them, and never more bytes than there are."""

    @initialize(
        kind=st.sampled_from(KINDS),
        kv=st.sampled_from(["fp16", "fp32"]),
        num_blocks=st.integers(2 * BLOCKS, 12),
    )
    def start(self, kind: str, kv: str, num_blocks: int) -> None:
        self.caches = new_pair(kind, kv, num_blocks, self.let_go)
        self.total = num_blocks * self.caches[0].block_nbytes
        self.held: dict[tuple[int, int], list[int]] = {}

    def let_go(self) -> bool:
        slots = [slot for which, slot in self.held if which]
        if slots:
            self.caches[1].close(slots[-1], self.held.pop((1, slots[-1])))
        return bool(slots)

    def grow(self, which: int, slot: int, stop: int) -> bool:
        cache, tokens = self.caches[which], self.held[which, slot]
        length = cache.length(slot)
        if not cache.reserve(slot, stop - length):
            return False
        rows = np.array(tokens[length:stop], np.float32) + which
        k = np.tile(rows[:, None, None], (1, HEADS, WIDTH))
        for layer in range(LAYERS):
            cache.write(layer, slot, length, k + layer, -k)
        cache.keep(slot, range(stop - length))
        return True

    @rule(which=st.integers(0, 1), text=st.sampled_from(TEXTS), own=st.integers(0, 9))
    def open(self, which: int, text: list[int], own: int) -> None:
        tokens = [*text[: 20 * own], *[own] * (MAX_LEN - 20 * own)]
        if opened := self.caches[which].open(tokens):
            self.held[which, opened[0]] = tokens

    @rule(data=st.data(), rows=st.integers(1, MAX_LEN))
    def write(self, data: st.DataObject, rows: int) -> None:
        if not self.held:
            return
        which, slot = data.draw(st.sampled_from(sorted(self.held)))
        length = self.caches[which].length(slot)
        stop = min(length + rows, MAX_LEN)
        while stop > length and not self.grow(which, slot, stop):
            if which or not self.caches[0].pool.shared.reclaim():
                alone = sum(each == 0 for each, _ in self.held) == 1
                assert which or not alone, "who is alone, with all reclaimed, has room"
                break

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.held:
            which, slot = data.draw(st.sampled_from(sorted(self.held)))
            self.caches[which].close(slot, self.held.pop((which, slot)))

    @invariant()
    def no_more_bytes_than_there_are(self) -> None:
        if not hasattr(self, "caches"):
            return
        shared = self.caches[0].pool.shared
        taken = [(p.num_blocks - len(p._unbacked)) * p.block_nbytes for p in shared.pools]
        assert sum(taken) + shared.unused == self.total
        for cache in self.caches:
            assert cache.pool.num_free + cache.pool.num_idle <= self.total // cache.block_nbytes

    @invariant()
    def holds_what_was_written(self) -> None:
        for (which, slot), tokens in getattr(self, "held", {}).items():
            cache = self.caches[which]
            length = cache.length(slot)
            expected = np.array(tokens[:length], np.float32)[:, None] + which
            for layer in range(LAYERS):
                keys, values = cache.read(layer, slot, length)
                assert np.array_equal(keys, np.tile(expected + layer, (HEADS, 1, WIDTH)))
                assert np.array_equal(values, -np.tile(expected, (HEADS, 1, WIDTH)))


TestSharedBytes = SharedBytesMachine.TestCase
TestSharedBytes.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_does_not_need_the_other_has(kind: str) -> None:
    host, guest = new_pair(kind, "fp32", 2 * BLOCKS)
    slot, _ = host.open(TEXTS[0])
    other, _ = guest.open(TEXTS[0])
    assert guest.reserve(other, MAX_LEN)
    assert host.pool.num_free == 2 * BLOCKS - BLOCKS // 2
    assert host.reserve(slot, MAX_LEN)
    assert guest.pool.num_free == 2 * (2 * BLOCKS - BLOCKS - BLOCKS // 2)
    guest.close(other, ())
    host.close(slot, ())
    assert host.pool.num_free == 2 * BLOCKS
    assert guest.pool.num_free == guest.pool.num_blocks


@pytest.mark.parametrize("kind", KINDS)
def test_a_guest_leaves_a_block_for_every_open_slot(kind: str) -> None:
    host, guest = new_pair(kind, "fp32", 2 * BLOCKS)
    for text in TEXTS:
        slot, _ = host.open(text)
        assert host.reserve(slot, (BLOCKS - 1) * BLOCK_ROWS)
    other, _ = guest.open([5])
    assert not guest.reserve(other, 1)
    host.close(slot, ())
    assert guest.reserve(other, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_of_both_are_given_up_in_one_order(kind: str) -> None:
    host, guest = new_pair(kind, "fp32", 2 * BLOCKS)
    for cache, text in ((host, TEXTS[0]), (guest, TEXTS[0]), (host, [9] * MAX_LEN)):
        slot, _ = cache.open(text)
        stop = 2 * BLOCK_ROWS
        assert cache.reserve(slot, stop)
        cache.keep(slot, range(stop))
        cache.close(slot, text[:stop])
    assert (host.pool.num_idle, host.pool.num_free) == (4 + 1, 3)
    left = []
    for _ in range(2 * BLOCKS):
        assert host.pool.take() is not None
        left.append((len(host.pool._idle), len(guest.pool._idle)))
    assert left == [(4, 2)] * 3 + [(3, 2), (2, 2), (2, 0), (1, 0), (0, 0)]
    assert host.pool.take() is None
