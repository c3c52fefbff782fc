"""The caches against one made of Python lists."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forerun.core.arrays import Floats
from forerun.core.config import Precision
from forerun.core.errors import CapacityError
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import BLOCK_ROWS, common_prefix
from forerun.model.cache.native import NativeCache
from forerun.model.config import ModelConfig
from forerun.model.kernels import native
from tests.arrays import normal

LAYERS, SLOTS, HEADS, WIDTH, MAX_LEN = 2, 3, 2, 16, 200
BLOCKS = 4  # that MAX_LEN rows take
KEY_BLOCK = 128  # of the torch decoder
FRACTIONS = np.arange(WIDTH, dtype=np.float32) / WIDTH
CONFIG = ModelConfig("tiny", 8, 32, 32, LAYERS, HEADS, HEADS, WIDTH, MAX_LEN)
KINDS = [
    *(["torch"] if find_spec("torch") is not None else []),
    *(["native"] if native.reason() is None else []),
]
kinds = pytest.mark.parametrize("kind", KINDS)


class ReadableCache(NativeCache):
    """A native cache with the rows' places in memory spelled out."""

    def blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys (P, L, G, 4, E, 16) and values (P, L, G, 64, E)."""
        is_half = self.block_nbytes == 2 * LAYERS * HEADS * BLOCK_ROWS * WIDTH * 2
        memory = self.native.memory().view(np.float16 if is_half else np.float32)
        pages = memory.reshape(-1, LAYERS, HEADS, 2, BLOCK_ROWS * WIDTH)
        keys = pages[:, :, :, 0].reshape(*pages.shape[:3], 4, WIDTH, 16, copy=False)
        return keys, pages[:, :, :, 1].reshape(*pages.shape[:3], BLOCK_ROWS, WIDTH, copy=False)

    def write(self, layer: int, slot: int, start: int, k: Floats, v: Floats) -> None:
        keys, values = self.blocks()
        for i in range(len(k)):
            index, row = divmod(start + i, BLOCK_ROWS)
            block = self._tables[slot][index]
            keys[block, layer, :, row // 16, :, row % 16] = k[i]
            values[block, layer, :, row] = v[i]

    def read(self, layer: int, slot: int, stop: int) -> tuple[Floats, Floats]:
        table = self._tables[slot][: -(-stop // BLOCK_ROWS)]
        keys, values = (part[table, layer].astype(np.float32) for part in self.blocks())
        keys = keys.transpose(1, 0, 2, 4, 3).reshape(HEADS, -1, WIDTH)
        values = values.transpose(1, 0, 2, 3).reshape(HEADS, -1, WIDTH)
        return keys[:, :stop], values[:, :stop]


def new_cache(
    kind: str, kv: Precision = "fp32", num_blocks: int | None = None, config: ModelConfig = CONFIG
) -> KVCache:
    if kind == "native":
        return ReadableCache(config, SLOTS, MAX_LEN, kv, num_blocks)
    from tests.lab.torch.decoders import ArrayCache

    return ArrayCache(config, SLOTS, MAX_LEN, kv, num_blocks)


LONG = [[i % 2 for i in range(MAX_LEN)], [i % 3 for i in range(MAX_LEN)]]
EDGES = [0, 0, 3, 60, 63, 64, 65, 127, 128, 130]


class AgainstLists(RuleBasedStateMachine):
    """A row is a number that stands for the tokens up to it; a slot is the list of its tokens."""

    tails = st.lists(st.integers(0, 2), min_size=1, max_size=5)

    @initialize(kind=st.sampled_from(KINDS), num_blocks=st.integers(BLOCKS, 20))
    def start(self, kind: str, num_blocks: int) -> None:
        self.cache = new_cache(kind, num_blocks=num_blocks)
        self.held: dict[int, list[int]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.numbers: dict[tuple[int, ...], int] = {}
        self.closed: list[list[int]] = []

    def number(self, tokens: list[int]) -> int:
        return self.numbers.setdefault(tuple(tokens), 1 + len(self.numbers))

    def known(self) -> list[list[int]]:
        """The texts whose rows can be found if nothing was evicted."""
        running = [
            tokens[: common_prefix(tokens, self.prompts[slot])]
            for slot, tokens in self.held.items()
        ]
        return running + self.closed

    @rule(edge=st.sampled_from(EDGES), tail=tails, reuse=st.booleans(), data=st.data())
    def open(self, edge: int, tail: list[int], reuse: bool, data: st.DataObject) -> None:
        before = data.draw(st.sampled_from([*LONG, *self.known()]))
        tokens = (before[:edge] if data.draw(st.booleans()) else before)[: MAX_LEN - 9] + tail
        opened = self.cache.open(tokens, reuse=reuse)
        if opened is None:
            assert self.held, "who is alone has room"
            return
        slot, reused = opened
        assert slot not in self.held
        assert reused < len(tokens)
        if not reuse:
            assert reused == 0
        elif not self.cache.pool.num_evicted:
            assert reused == max(
                (common_prefix(text, tokens[:-1]) for text in self.known()), default=0
            )
        self.held[slot], self.prompts[slot] = tokens[:reused], tokens

    @rule(junk=st.integers(0, 70), data=st.data())
    def write_and_keep(self, junk: int, data: st.DataObject) -> None:
        if not self.held:
            return
        slot = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[slot]
        coming = self.prompts[slot][len(held) :] or data.draw(self.tails)
        size = len(coming) + junk
        if not self.cache.reserve(slot, size):
            assert len(held) + size > MAX_LEN or len(self.held) > 1, "who is alone has room"
            return
        path = list(range(len(coming)))
        if junk and data.draw(st.booleans()):
            path = sorted(data.draw(st.permutations(range(size)))[: len(coming)])
        rows = np.zeros(size, np.float32)
        for i, row in enumerate(path):
            rows[row] = self.number(held + coming[: i + 1])
        k = np.tile(rows[:, None, None], (1, HEADS, WIDTH)) + FRACTIONS
        for layer in range(LAYERS):
            self.cache.write(layer, slot, len(held), k + 1000 * layer, -k)
        self.cache.keep(slot, path)
        self.held[slot] = held + coming

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        if self.held:
            slot = data.draw(st.sampled_from(sorted(self.held)))
            length = data.draw(st.integers(0, len(self.held[slot])))
            self.cache.truncate(slot, length)
            known = common_prefix(self.held[slot], self.prompts[slot])
            self.closed.append(self.held[slot][: known // BLOCK_ROWS * BLOCK_ROWS])
            self.held[slot] = self.held[slot][:length]
            self.prompts[slot] = self.prompts[slot][:length]

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.held:
            slot = data.draw(st.sampled_from(sorted(self.held)))
            self.cache.close(slot, [*self.held[slot], 7])  # the last token is not in the cache yet
            self.closed.append(self.held.pop(slot))

    @rule(count=st.integers(0, 3))
    def evict(self, count: int) -> None:
        idle = self.cache.pool.num_idle
        assert self.cache.pool.evict(count) == min(count, idle)

    @invariant()
    def holds_the_same(self) -> None:
        for slot, tokens in getattr(self, "held", {}).items():
            assert self.cache.length(slot) == len(tokens)
            numbers = [self.number(tokens[: i + 1]) for i in range(len(tokens))]
            expected = np.array(numbers, np.float32)[:, None] + FRACTIONS
            expected = np.broadcast_to(expected, (HEADS, *expected.shape))
            for layer in range(LAYERS):
                keys, values = self.cache.read(layer, slot, len(tokens))
                assert np.array_equal(keys, expected + 1000 * layer)
                assert np.array_equal(values, -expected)

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        cache = getattr(self, "cache", None)
        if cache is None:
            return
        pool = cache.pool
        holders = Counter(block for table in cache._tables for block in table)
        assert [holders[block] for block in range(pool.num_blocks)] == pool._ref_counts
        assert pool.num_used == len(holders)
        assert not set(pool._idle) & (set(holders) | set(pool._free))
        assert len(set(pool._free)) == pool.num_free
        assert set(pool._nodes) >= set(pool._idle)
        for slot, table in enumerate(cache._tables):
            assert len(table) == -(-cache.length(slot) // BLOCK_ROWS)


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def filled(cache: KVCache, tokens: list[int]) -> int:
    """The slot of a sequence whose rows are all committed."""
    slot, length = cache.open(tokens)
    cache.keep(slot, range(len(tokens) - length))
    return slot


@kinds
def test_whole_blocks_are_shared_and_never_copied(kind: str) -> None:
    cache = new_cache(kind)
    copied = []
    cache._copy_block = lambda source, target: copied.append(source)
    first = filled(cache, [*LONG[0][:128], 5])
    second, length = cache.open([*LONG[0][:128], 6, 7])
    assert length == 128
    assert cache._tables[second] == cache._tables[first][:2]
    cache.keep(second, range(2))
    assert cache.pool.num_used == 2 + 1 + 1
    assert not copied
    third, length = cache.open([*LONG[0][:128], 5, 5])
    assert length == 129
    assert cache.pool.num_used == 4
    cache.keep(third, [0])
    assert copied == [cache._tables[first][2]]
    assert cache.pool.num_used == 5


@pytest.mark.parametrize("shared", [1, 62, 63, 64, 65, 126, 127, 128])
@kinds
def test_who_shares_a_part_of_a_block_writes_its_own_copy(kind: str, shared: int) -> None:
    """The first's rows stay, wherever in a block the second's text parts from it: at a block's last row too."""
    cache = new_cache(kind)

    def write(slot: int, start: int, numbers: list[float]) -> None:
        rows = np.tile(np.float32(numbers)[:, None, None], (1, HEADS, WIDTH))
        for layer in range(LAYERS):
            cache.write(layer, slot, start, rows, rows)
        cache.keep(slot, range(len(numbers)))

    text = LONG[0][:130]
    first, _ = cache.open(text)
    assert cache.reserve(first, 130)
    write(first, 0, [float(i) for i in range(130)])
    second, length = cache.open([*text[:shared], 9, 9, 9])
    assert length == shared
    assert cache.reserve(second, 3)
    write(second, shared, [-1.0, -2.0, -3.0])
    for slot, expected in (
        (first, [float(i) for i in range(130)]),
        (second, [*map(float, range(shared)), -1.0, -2.0, -3.0]),
    ):
        keys, values = cache.read(0, slot, len(expected))
        wanted = np.tile(np.float32(expected)[:, None], (HEADS, 1, WIDTH))
        assert np.array_equal(keys, wanted)
        assert np.array_equal(values, wanted)


@kinds
def test_equal_blocks_that_two_computed_become_one(kind: str) -> None:
    cache = new_cache(kind)
    slots = [cache.open(LONG[0][:70])[0] for _ in range(2)]
    for slot in slots:
        cache.keep(slot, range(70))
    assert cache._tables[slots[0]][0] == cache._tables[slots[1]][0]
    assert cache.pool.num_used == 3


@kinds
def test_a_turn_is_continued_where_it_lies(kind: str) -> None:
    cache = new_cache(kind)
    cache._copy_block = None  # not called
    slot = filled(cache, LONG[0][:100])
    table = [*cache._tables[slot]]
    cache.close(slot, LONG[0][:100])
    assert (cache.pool.num_used, cache.pool.num_idle) == (0, 2)
    slot, length = cache.open(LONG[0][:110])
    assert length == 100
    assert cache.reserve(slot, 10)
    assert cache._tables[slot] == table


@kinds
def test_the_least_recently_used_is_evicted_first_and_ends_before_beginnings(kind: str) -> None:
    cache = new_cache(kind, num_blocks=6)
    for text in LONG:
        cache.close(filled(cache, text[:192]), text[:192])
    slot, length = cache.open(LONG[0][:192])
    assert length == 191
    cache.close(slot, LONG[0][:192])  # used again
    slot, _ = cache.open([9] * 65)
    assert cache.reserve(slot, 65)
    assert cache.pool.num_evicted == 2
    assert cache._find(LONG[1])[2] == 64
    assert cache._find(LONG[0])[2] == 192


@kinds
def test_who_finds_no_memory_waits_unless_alone(kind: str) -> None:
    cache = new_cache(kind, num_blocks=BLOCKS)
    slot, _ = cache.open(LONG[0])
    assert cache.reserve(slot, 130)
    assert cache.open(LONG[1][:70]) is None
    assert cache.open(LONG[1][:60], spare=1) is None
    other, _ = cache.open(LONG[1][:60])
    assert cache.reserve(other, 60)
    assert not cache.reserve(slot, MAX_LEN)
    assert cache.pool.num_used == 3 + 1, "each has the blocks that it had before"
    cache.close(other, LONG[1])
    assert cache.reserve(slot, MAX_LEN)
    assert not cache.reserve(slot, MAX_LEN + 1)


@kinds
def test_a_full_cache_that_holds_one_text_can_be_gone_on_with(kind: str) -> None:
    cache = new_cache(kind, num_blocks=BLOCKS)
    cache.close(filled(cache, LONG[0]), LONG[0])
    slot, length = cache.open([*LONG[0][:100], 9])
    assert length == 100
    assert cache.reserve(slot, MAX_LEN - 100)


@kinds
def test_idle_slots_take_no_blocks_and_scratch_rows_give_theirs_back(kind: str) -> None:
    cache = new_cache(kind)
    assert cache.pool.num_used == 0
    assert cache.usage() == 0
    slot, _ = cache.open([1, 2])
    assert cache.reserve(slot, 150)
    assert cache.pool.num_used == 3
    cache.keep(slot, [0, 149])
    assert cache.pool.num_used == 1


@kinds
def test_the_lowest_free_block_is_taken(kind: str) -> None:
    cache = new_cache(kind)
    for slot in range(SLOTS):
        assert cache.reserve(slot, 70)
    cache.truncate(1, 0)
    cache.truncate(0, 0)
    assert cache.reserve(1, 130)
    assert cache._tables[1] == [0, 1, 2]


@pytest.mark.parametrize(
    ("kv", "row"), [("fp32", 128), ("fp16", 64), ("int8", 35), ("k8v4", 27), ("int4", 20)]
)
@kinds
def test_a_block_has_the_bytes_of_its_rows(kind: str, kv: Precision, row: int) -> None:
    cache = new_cache(kind, kv, config=replace(CONFIG, head_dim=32))
    rows = 2 * LAYERS * HEADS * BLOCK_ROWS * row
    assert rows <= cache.block_nbytes <= rows * 1.05


@kinds
def test_rows_are_stored_as_the_type_asked_for(kind: str) -> None:
    k, v = normal(2, 5, HEADS, WIDTH)
    for kv, dtype in (("fp16", np.float16), ("fp32", np.float32)):
        cache = new_cache(kind, kv)
        assert cache.reserve(0, 5)
        cache.write(0, 0, 0, k, v)
        keys, values = cache.read(0, 0, 5)
        assert keys.dtype == values.dtype == np.float32
        assert np.array_equal(keys, k.astype(dtype).astype(np.float32).swapaxes(0, 1))
        assert np.array_equal(values, v.astype(dtype).astype(np.float32).swapaxes(0, 1))
    assert new_cache(kind, "fp16").nbytes() == new_cache(kind).nbytes() / 2


@kinds
def test_nbytes_is_what_whole_blocks_take(kind: str) -> None:
    assert new_cache(kind).nbytes() == 2 * LAYERS * SLOTS * HEADS * 2 * KEY_BLOCK * WIDTH * 4


@pytest.mark.skipif("torch" not in KINDS, reason="it is the torch decoder that reads so")
def test_a_key_block_can_be_read_to_its_end_and_is_finite_there() -> None:
    keys, values = new_cache("torch").read(0, 0, KEY_BLOCK)
    assert keys.shape == values.shape == (HEADS, KEY_BLOCK, WIDTH)
    assert np.isfinite(keys).all()
    assert np.isfinite(values).all()


@kinds
def test_what_cannot_be_is_refused(kind: str) -> None:
    cache = new_cache(kind)
    for path in ([0, 0], [1, 0], [-1]):
        with pytest.raises(ValueError, match="ascend"):
            cache.keep(0, path)
    assert cache.reserve(0, MAX_LEN)
    cache.keep(0, range(MAX_LEN))
    assert not cache.reserve(0, 1)
    with pytest.raises(CapacityError, match="has 200 rows"):
        cache.keep(0, [0])
    with pytest.raises(ValueError, match="cannot cut"):
        cache.truncate(0, MAX_LEN + 1)
    with pytest.raises(ValueError, match="closed already"):
        cache.close(0, [])


@pytest.mark.skipif("native" not in KINDS, reason="needs the native kernels")
def test_native_blocks_are_as_large_as_ours() -> None:
    from forerun import _native

    assert _native.Cache.block_rows == BLOCK_ROWS


@kinds
def test_too_few_blocks_for_one_sequence_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="cannot hold a sequence of 200 rows"):
        new_cache(kind, num_blocks=BLOCKS - 1)
