"""Which states slots have, and which checkpoints are found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.batch import Segment
from forerun.core.errors import CapacityError
from forerun.lab.torch.recurrence import CHUNK
from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.cache.states import CHECKPOINT_ROWS, StateTable
from tests.arrays import same_bits
from tests.lab.torch.decoders import random_decoder
from tests.model.test_row_law import TORCH, cut, decode, text
from tests.native.models import logits_of


class Lists:
    """States as lists of what was done to them."""

    state_nbytes = rows_nbytes = 1

    def __init__(self) -> None:
        self.states: dict[int, list[object]] = {}
        self.placed: dict[int, int] = {}

    def place_state(self, slot: int, state: int, rows: int) -> None:
        assert state not in (of for other, of in self.placed.items() if other != slot)
        self.placed[slot] = state

    def clear_state(self, state: int) -> None:
        self.states[state] = []

    def copy_state(self, source: int, target: int) -> None:
        assert source != target
        self.states[target] = [*self.states[source]]

    def advance(self, slot: int, rows: int) -> None:
        self.states[self.placed[slot]].append(rows)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), num_checkpoints=st.integers(0, 3))
def test_a_checkpoint_is_the_state_that_was_kept(data: st.DataObject, num_checkpoints: int) -> None:
    memory = Lists()
    table = StateTable(memory, 2, num_checkpoints)
    for slot in range(2):
        table.close(slot, None)
    memory.placed.clear()
    read_rows: dict[int, list[object]] = {}  # by slot: what it has read
    checkpoints: dict[int, list[object]] = {}  # by block: what its checkpoint must be
    for block in range(30):
        slot = data.draw(st.integers(0, 1))
        if slot not in read_rows:
            known = [b for b in checkpoints if table.has(b)]
            begun = data.draw(st.sampled_from([None, *known]))
            rows = 0 if begun is None else len(checkpoints[begun]) * BLOCK_ROWS
            table.open(slot, begun, rows)
            read_rows[slot] = [] if begun is None else [*checkpoints[begun]]
            assert memory.states[memory.placed[slot]] == read_rows[slot]
            continue
        verb = data.draw(st.sampled_from(["advance", "advance", "checkpoint", "close", "forget"]))
        if verb == "advance":
            rows = table.rows[slot] + BLOCK_ROWS
            table.advance(slot, rows + data.draw(st.integers(0, BLOCK_ROWS - 1)))
            read_rows[slot].append(rows)
        elif verb == "forget":
            table.forget(data.draw(st.integers(0, 30)))
        else:
            checkpoints[block] = [*read_rows[slot]]
            if verb == "checkpoint":
                table.checkpoint(slot, block)
            else:
                table.close(slot, block)
                del read_rows[slot], memory.placed[slot]
                assert table.has(block)
        for slot in read_rows:
            assert memory.states[memory.placed[slot]] == read_rows[slot]


def test_no_state_is_lost_by_restoring_a_checkpoint_that_is_there() -> None:
    memory = Lists()
    table = StateTable(memory, 2, 2)
    table.close(0, 1)
    table.close(1, 2)
    memory.placed.clear()
    for block in (3, 3, 4, 4, 5, 5):
        assert table.restore(block, lambda state: True)
        assert table.has(block)
    table.open(0, None, 0)
    table.open(1, None, 0)


def test_a_chunk_is_a_block() -> None:
    assert CHUNK == BLOCK_ROWS


def test_a_prefix_is_found_up_to_its_last_checkpoint() -> None:
    decoder = random_decoder(TORCH["hybrid"])
    cache = decoder.new_cache(2, 256)
    prompt = text()[:150]
    slot, num_cached = cache.open(prompt)  # type: ignore[misc]
    assert num_cached == 0
    decode(decoder, cache, slot, prompt)
    for other, expected in (((*prompt, 1, 2), 128), (prompt[:140], 128), (prompt[:129], 128)):
        opened = cache.open(other)
        assert opened is not None
        assert opened[1] == expected
        fresh = decode(decoder, decoder.new_cache(1, 256), 0, other)
        logits = decode(decoder, cache, opened[0], other[expected:])
        assert same_bits(logits, fresh[expected:])
        cache.close(opened[0], other)
    assert cache.open(prompt[:128]) == (opened[0], 0)  # one row is left to compute


def test_long_prompts_have_checkpoints_on_their_way() -> None:
    decoder = random_decoder(replace(TORCH["hybrid"], max_position=2 * CHECKPOINT_ROWS))
    tokens = (*text(), *text())[:CHECKPOINT_ROWS]
    cache = decoder.new_cache(2, 2 * CHECKPOINT_ROWS, num_checkpoints=4)
    prompt = tokens + tokens[:200]
    slot, _ = cache.open(prompt)  # type: ignore[misc]
    for start in range(0, len(prompt), 128):
        decode(decoder, cache, slot, prompt[start : start + 128])
    assert cache.open(prompt[: CHECKPOINT_ROWS + 70]) == (1 - slot, CHECKPOINT_ROWS + BLOCK_ROWS)


def test_a_state_can_go_back_to_the_rows_beside_it_only() -> None:
    decoder = random_decoder(TORCH["hybrid"])
    cache = decoder.new_cache(1, 256)
    decode(decoder, cache, 0, text()[:100])
    cache.truncate(0, 70)
    fresh = decode(decoder, decoder.new_cache(1, 256), 0, (*text()[:70], 7))
    assert same_bits(decode(decoder, cache, 0, (7,))[0], fresh[-1])
    with pytest.raises(ValueError, match="state of slot 0 is beyond 60 rows"):
        cache.truncate(0, 60)
    cut(decoder, cache, 0, text()[:60])
    assert same_bits(decode(decoder, cache, 0, (text()[60],))[0], fresh[60])


def test_a_draft_that_has_no_room_beside_the_state_is_refused() -> None:
    decoder = random_decoder(TORCH["hybrid"])
    cache = decoder.new_cache(1, 256, draft_rows=8)
    decode(decoder, cache, 0, text()[:63])
    assert np.isfinite(logits_of(decoder, cache, Segment(0, 63, (1,) * 9))).all()
    with pytest.raises(CapacityError, match="more than 8 rows"):
        logits_of(decoder, cache, Segment(0, 63, (1,) * 10))
