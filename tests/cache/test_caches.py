"""Both caches against one made of Python lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forerun.cache.base import KVCache
from forerun.cache.dense import DenseCache
from forerun.core.errors import CapacityError
from forerun.kernels import native
from forerun.kernels.reference import KEY_BLOCK
from forerun.nn.config import ModelConfig
from forerun.nn.native_cache import NativeCache

LAYERS, SLOTS, HEADS, WIDTH, MAX_LEN = 2, 3, 2, 16, 80
CONFIG = ModelConfig("tiny", 8, 32, 32, LAYERS, HEADS, HEADS, WIDTH, MAX_LEN)
KINDS = ["dense", *(["native"] if native.reason() is None else [])]
kinds = pytest.mark.parametrize("kind", KINDS)


class ReadableCache(NativeCache):
    """A native cache with the rows' places in memory spelled out."""

    def places(self, layer: int, slot: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        dtype = np.float16 if self.nbytes() < new_cache().nbytes() else np.float32
        keys, values = (memory.view(dtype) for memory in self.native.memory())
        page, row = slot * -(-MAX_LEN // 64) + row // 64, row % 64
        keys = keys.reshape(LAYERS, HEADS, -1, 4, WIDTH, 16)[layer, :, page, row // 16, :, row % 16]
        return keys, values.reshape(LAYERS, HEADS, -1, 64, WIDTH)[layer, :, page, row]

    def write(self, layer: int, slot: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        for i in range(len(k)):
            for place, row in zip(self.places(layer, slot, start + i), (k[i], v[i]), strict=True):
                place[:] = row

    def read(self, layer: int, slot: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.zeros(2, stop, HEADS, WIDTH)
        for i in range(stop):
            rows[:, i] = torch.from_numpy(np.stack(self.places(layer, slot, i)))
        k, v = rows.transpose(1, 2)
        return k, v


def new_cache(kind: str = "dense", dtype: torch.dtype = torch.float32) -> KVCache:
    if kind == "native":
        return ReadableCache(CONFIG, SLOTS, MAX_LEN, dtype)
    return DenseCache(
        num_layers=LAYERS,
        num_slots=SLOTS,
        num_kv_heads=HEADS,
        head_dim=WIDTH,
        max_len=MAX_LEN,
        dtype=dtype,
    )


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(b))


class AgainstLists(RuleBasedStateMachine):
    """A row is a number that stands for the tokens up to it; a slot is the list of its tokens."""

    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=30)

    @initialize(kind=st.sampled_from(KINDS))
    def start(self, kind: str) -> None:
        self.cache = new_cache(kind)
        self.held: list[list[int]] = [[] for _ in range(SLOTS)]
        self.prompts: dict[int, list[int]] = {}
        self.numbers: dict[tuple[int, ...], int] = {}

    def number(self, tokens: list[int]) -> int:
        return self.numbers.setdefault(tuple(tokens), 1 + len(self.numbers))

    @rule(tokens=tokens, reuse=st.booleans(), data=st.data())
    def open(self, tokens: list[int], reuse: bool, data: st.DataObject) -> None:
        if data.draw(st.booleans()):  # begin like another
            tokens = (data.draw(st.sampled_from(self.held)) + tokens)[:MAX_LEN]
        known = [
            held[: common(held, self.prompts.get(slot, held))]
            for slot, held in enumerate(self.held)
        ]
        opened = self.cache.open(tokens, reuse=reuse)
        if len(self.prompts) == SLOTS:
            assert opened is None
            return
        slot, reused = opened
        assert slot not in self.prompts
        longest = max(min(common(tokens, held), len(held), len(tokens) - 1) for held in known)
        assert reused == (longest if reuse else 0)
        self.held[slot], self.prompts[slot] = tokens[:reused], tokens

    @rule(junk=st.integers(0, 5), data=st.data())
    def write_and_keep(self, junk: int, data: st.DataObject) -> None:
        if not self.prompts:
            return
        slot = data.draw(st.sampled_from(sorted(self.prompts)))
        held = self.held[slot]
        coming = self.prompts[slot][len(held) :] or data.draw(self.tokens)
        coming = coming[: min(data.draw(st.integers(0, 20)), MAX_LEN - len(held) - junk)]
        size = len(coming) + junk
        if len(held) + size > MAX_LEN:
            return
        assert self.cache.reserve(slot, size)
        path = sorted(data.draw(st.permutations(range(size)))[: len(coming)])
        rows = torch.zeros(size)
        for i, row in enumerate(path):
            rows[row] = self.number(held + coming[: i + 1])
        k = rows[:, None, None].expand(size, HEADS, WIDTH) + torch.arange(WIDTH) / WIDTH
        for layer in range(LAYERS if size else 0):
            self.cache.write(layer, slot, len(held), k + 1000 * layer, -k)
        self.cache.keep(slot, path)
        self.held[slot] = held + coming

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        slot = data.draw(st.integers(0, SLOTS - 1))
        length = data.draw(st.integers(0, len(self.held[slot])))
        self.cache.truncate(slot, length)
        self.held[slot] = self.held[slot][:length]

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.prompts:
            slot = data.draw(st.sampled_from(sorted(self.prompts)))
            self.cache.close(slot, [*self.held[slot], 7])  # the last token is not in the cache yet
            del self.prompts[slot]

    @invariant()
    def holds_the_same(self) -> None:
        for slot, tokens in enumerate(self.held):
            assert self.cache.length(slot) == len(tokens)
            numbers = [self.number(tokens[: i + 1]) for i in range(len(tokens))]
            expected = torch.tensor(numbers, dtype=torch.float32)[:, None]
            expected = (expected + torch.arange(WIDTH) / WIDTH).expand(HEADS, -1, -1)
            for layer in range(LAYERS):
                keys, values = self.cache.read(layer, slot, len(tokens))
                assert torch.equal(keys, expected + 1000 * layer)
                assert torch.equal(values, -expected)


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@kinds
def test_the_slot_closed_first_is_taken_first_unless_another_is_of_use(kind: str) -> None:
    cache = new_cache(kind)
    texts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for slot, tokens in enumerate(texts):
        assert cache.open(tokens) == (slot, 0)
        cache.keep(slot, range(3))
    assert cache.open([1]) is None
    for slot in (2, 0, 1):
        cache.close(slot, texts[slot])
    assert cache.open([4, 5, 0]) == (1, 2)
    assert cache.open([3, 3]) == (2, 0)
    assert cache.open([4, 5, 0], reuse=False) == (0, 0)


@kinds
def test_rows_are_stored_as_the_type_asked_for(kind: str) -> None:
    k, v = torch.randn(2, 5, HEADS, WIDTH).unbind(0)
    for dtype in (torch.float16, torch.float32):
        cache = new_cache(kind, dtype)
        cache.write(0, 0, 0, k, v)
        keys, values = cache.read(0, 0, 5)
        assert keys.dtype == values.dtype == torch.float32
        assert torch.equal(keys, k.to(dtype).float().transpose(0, 1))
        assert torch.equal(values, v.to(dtype).float().transpose(0, 1))
    assert new_cache(kind, torch.float16).nbytes() == new_cache(kind).nbytes() / 2


@kinds
def test_nbytes_is_what_whole_blocks_take(kind: str) -> None:
    assert new_cache(kind).nbytes() == 2 * LAYERS * SLOTS * HEADS * KEY_BLOCK * WIDTH * 4


def test_a_block_can_be_read_to_its_end_and_is_zero_there() -> None:
    keys, values = new_cache().read(0, 0, KEY_BLOCK)
    assert keys.shape == (HEADS, KEY_BLOCK, WIDTH)
    assert not keys.any()
    assert not values.any()


@kinds
def test_what_cannot_be_is_refused(kind: str) -> None:
    cache = new_cache(kind)
    for path in ([0, 0], [1, 0], [-1]):
        with pytest.raises(ValueError, match="ascend"):
            cache.keep(0, path)
    assert cache.reserve(0, MAX_LEN)
    cache.keep(0, range(MAX_LEN))
    assert not cache.reserve(0, 1)
    with pytest.raises(CapacityError, match="has 80 rows"):
        cache.keep(0, [0])
    with pytest.raises(ValueError, match="cannot cut"):
        cache.truncate(0, MAX_LEN + 1)
    with pytest.raises(ValueError, match="closed already"):
        cache.close(0, [])
