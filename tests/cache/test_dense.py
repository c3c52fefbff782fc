"""The dense cache against a cache made of Python lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forerun.cache.dense import DenseCache
from forerun.core.errors import CapacityError
from forerun.kernels.reference import KEY_BLOCK

LAYERS, SLOTS, HEADS, WIDTH, MAX_LEN = 2, 3, 2, 4, 24


def new_cache() -> DenseCache:
    return DenseCache(
        num_layers=LAYERS, num_slots=SLOTS, num_kv_heads=HEADS, head_dim=WIDTH, max_len=MAX_LEN
    )


class AgainstLists(RuleBasedStateMachine):
    """Every row written is a number of its own; a slot is the list of the numbers it should hold."""

    @initialize()
    def start(self) -> None:
        self.cache = new_cache()
        self.held: list[list[int]] = [[] for _ in range(SLOTS)]
        self.next = 1

    slots = st.integers(0, SLOTS - 1)

    @rule(slot=slots, data=st.data())
    def write_and_keep(self, slot: int, data: st.DataObject) -> None:
        base = len(self.held[slot])
        size = data.draw(st.integers(0, min(8, MAX_LEN - base)))
        path = sorted(data.draw(st.sets(st.integers(0, size - 1)))) if size else []
        numbers = list(range(self.next, self.next + size))
        self.next += size
        for layer in range(LAYERS):
            rows = torch.tensor(numbers, dtype=torch.float32)[:, None, None]
            rows = rows.expand(size, HEADS, WIDTH) + 1000 * layer
            self.cache.write(layer, slot, base, rows, -rows)
        self.cache.keep(slot, path)
        self.held[slot] += [numbers[i] for i in path]

    @rule(slot=slots, data=st.data())
    def truncate(self, slot: int, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.held[slot])))
        self.cache.truncate(slot, length)
        del self.held[slot][length:]

    @rule(source=slots, destination=slots, data=st.data())
    def copy(self, source: int, destination: int, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.held[source])))
        self.cache.copy(source, destination, length)
        self.held[destination] = self.held[source][:length]

    @precondition(lambda self: hasattr(self, "cache"))
    @invariant()
    def holds_the_same(self) -> None:
        for slot, numbers in enumerate(self.held):
            assert self.cache.length(slot) == len(numbers)
            for layer in range(LAYERS):
                keys, values = self.cache.read(layer, slot, len(numbers))
                expected = torch.tensor(numbers, dtype=torch.float32) + 1000 * layer
                assert keys.shape == (HEADS, len(numbers), WIDTH)
                assert torch.equal(keys, expected[None, :, None].expand_as(keys))
                assert torch.equal(values, -keys)


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_a_block_can_be_read_to_its_end_and_is_zero_there() -> None:
    cache = new_cache()
    keys, values = cache.read(0, 0, KEY_BLOCK)
    assert keys.shape == (HEADS, KEY_BLOCK, WIDTH)
    assert not keys.any()
    assert not values.any()


def test_nbytes_is_what_the_tensors_take() -> None:
    assert new_cache().nbytes() == 2 * LAYERS * SLOTS * HEADS * KEY_BLOCK * WIDTH * 4


@pytest.mark.parametrize("path", [[0, 0], [1, 0], [-1]])
def test_a_path_ascends(path: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        new_cache().keep(0, path)


def test_rows_that_do_not_exist_are_refused() -> None:
    cache = new_cache()
    cache.keep(0, range(MAX_LEN))
    with pytest.raises(CapacityError, match="has 24 rows"):
        cache.keep(0, [0])
    with pytest.raises(ValueError, match="cannot cut"):
        cache.truncate(0, MAX_LEN + 1)
    with pytest.raises(ValueError, match="cannot copy"):
        cache.copy(1, 0, 1)
