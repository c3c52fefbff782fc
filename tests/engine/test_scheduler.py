"""Sequences wait for slots, and begin with the rows that the cache has of them."""

from __future__ import annotations

import pytest

from forerun.core.params import SamplingParams
from forerun.core.types import Seq
from forerun.engine.scheduler import Scheduler
from tests.engine.harness import GREEDY, LOOPING, Scripted, complete, engine_for, plain
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
TEXT = [1, 2, 3, 4, 5, 6]


def seq(id: int, tokens: list[int]) -> Seq:
    return Seq(id, list(tokens), SamplingParams(), 0)


def compute(scheduler: Scheduler, seq: Seq, rows: int) -> None:
    scheduler.cache.keep(seq.slot, range(rows))


def test_sequences_are_admitted_in_order_and_when_a_slot_is_free() -> None:
    scheduler = Scheduler(MODEL.new_cache(2, 64), reuse=True)
    first, second, third = (seq(i, [i, i, i]) for i in range(3))
    for waiting in (first, second, third):
        scheduler.add(waiting)
    scheduler.admit()
    assert scheduler.running == [first, second]
    compute(scheduler, second, 3)
    scheduler.release(second)
    scheduler.admit()
    assert scheduler.running == [first, third]
    assert scheduler.pending(third) == third.tokens


@pytest.mark.parametrize("reuse", [True, False])
def test_a_prompt_that_is_being_read_is_waited_for_only_if_its_rows_can_be_used(
    reuse: bool,
) -> None:
    scheduler = Scheduler(MODEL.new_cache(2, 64), reuse=reuse)
    first, second = seq(0, TEXT), seq(1, TEXT)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.admit()
    assert len(scheduler.running) == (1 if reuse else 2)
    compute(scheduler, first, 5)
    scheduler.admit()
    assert scheduler.pending(second) == (TEXT[-1:] if reuse else TEXT)


def test_who_was_preempted_goes_first_and_finds_its_rows() -> None:
    scheduler = Scheduler(MODEL.new_cache(1, 64), reuse=True)
    first, second = seq(0, TEXT), seq(1, [9, 9])
    scheduler.add(first)
    scheduler.add(second)
    scheduler.admit()
    compute(scheduler, first, 6)
    first.tokens += [7]
    scheduler.preempt(first)
    assert list(scheduler.waiting) == [first, second]
    scheduler.admit()
    assert scheduler.pending(first) == [7]


def test_without_room_for_its_rows_a_draft_is_left_out() -> None:
    answers = plain(MODEL, LOOPING, GREEDY)
    told = {tuple(prompt): answer for prompt, answer in zip(LOOPING, answers, strict=True)}
    engine = engine_for(MODEL, Scripted(told, lambda step: 3))
    reserve = engine.cache.reserve
    engine.cache.reserve = lambda slot, rows: rows <= 1 and reserve(slot, rows)  # type: ignore[method-assign]
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == answers
    assert engine.stats.drafted == 0
