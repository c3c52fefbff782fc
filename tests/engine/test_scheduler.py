"""Sequences wait for slots, and begin with the rows that the cache has of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.batch import Batch
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.core.types import Seq
from forerun.engine.engine import Engine
from forerun.engine.scheduler import FIRST_COME, RowBudgets, Scheduler
from forerun.model.model import Hidden
from tests.engine.harness import GREEDY, LOOPING, Scripted, complete, drain, engine_for, plain
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
TEXT = [1, 2, 3, 4, 5, 6]


def seq(id: int, tokens: list[int]) -> Seq:
    return Seq(id, list(tokens), SamplingParams(), 0)


def pending(scheduler: Scheduler, seq: Seq) -> list[int]:
    return seq.tokens[scheduler.cache.length(seq.slot) :]


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
    assert pending(scheduler, third) == third.tokens


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
    assert pending(scheduler, second) == (TEXT[-1:] if reuse else TEXT)


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
    assert pending(scheduler, first) == [7]


def test_places_go_by_priority_and_to_few_tokens_and_each_fourth_to_the_first_that_came() -> None:
    scheduler = Scheduler(MODEL.new_cache(1, 64), reuse=True)
    kinds = [(1, 16)] * 2 + [(0, None)] * 3 + [(0, 4)] * 3 + [(-1, None)] * 2
    for i, (priority, most) in enumerate(kinds):
        params = SamplingParams(max_tokens=most, priority=priority)
        scheduler.add(Seq(i, [i, i, i], params, 0))
    order = []
    while scheduler.waiting:
        scheduler.admit()
        (seq,) = scheduler.running
        order.append(seq.id)
        scheduler.release(seq)
    assert order == [8, 9, 5, 0, 6, 7, 2, 1, 3, 4]


@pytest.mark.parametrize("priority", [0, 5])
def test_who_waits_longest_gets_a_place_however_many_come_before_it(priority: int) -> None:
    scheduler = Scheduler(MODEL.new_cache(1, 64), reuse=True)
    last = Seq(0, [1, 1], SamplingParams(max_tokens=None, priority=priority), 0)
    scheduler.add(last)
    for i in range(1, 100):
        scheduler.add(Seq(i, [i % 20, 2], SamplingParams(max_tokens=1), 0))
        scheduler.admit()
        (seq,) = scheduler.running
        if seq is last:
            break
        scheduler.release(seq)
    assert i <= FIRST_COME


def test_texts_that_are_read_for_vectors_leave_a_place() -> None:
    for num_slots, most in ((3, 2), (1, 1)):
        scheduler = Scheduler(MODEL.new_cache(num_slots, 64), reuse=True)
        for i in range(4):
            scheduler.add(Seq(i, [i, i, i], SamplingParams(max_tokens=0, pooling="last"), 0))
        scheduler.admit()
        assert len(scheduler.running) == most
    scheduler = Scheduler(MODEL.new_cache(3, 64), reuse=True)
    for i, pooling in enumerate(("last", "last", "last", None)):
        scheduler.add(Seq(i, [i, i, i], SamplingParams(pooling=pooling), 0))
    scheduler.admit()
    assert [one.id for one in scheduler.running] == [0, 1, 3]


def test_others_go_on_while_one_waits_for_rows_that_are_being_read() -> None:
    scheduler = Scheduler(MODEL.new_cache(2, 64), reuse=True)
    first, sharing, other = seq(0, [*TEXT, 7]), seq(1, [*TEXT, 8]), seq(2, [9, 9])
    for waiting in (first, sharing, other):
        scheduler.add(waiting)
    scheduler.admit()
    assert scheduler.running == [first, other]


def test_memory_is_taken_from_the_lowest_priority() -> None:
    prompts = [[*([i] * 50), *prompt] for i, prompt in enumerate(LOOPING, 1)]
    params = SamplingParams(temperature=0, max_tokens=80)
    engine = engine_for(MODEL, cache=MODEL.new_cache(3, 256, num_blocks=4))
    preempted, preempt = [], engine.scheduler.preempt
    engine.scheduler.preempt = lambda seq: (preempted.append(seq.id), preempt(seq))
    runs = [
        engine.add(p, replace(params, priority=n)) for p, n in zip(prompts, (2, 1, 0), strict=True)
    ]
    drain(engine)
    assert preempted
    assert runs[2].seq.id not in preempted
    assert [run.seq.generated for run in runs] == plain(MODEL, prompts, params)


SHARED = [1 + i % 7 for i in range(150)]


def counting(engine: Engine) -> list[int]:
    """The rows of each pass from here on."""
    rows: list[int] = []
    forward = engine.model.forward

    def counted(batch: Batch, *args: object) -> Hidden:
        rows.append(batch.num_rows)
        return forward(batch, *args)

    parts = {"config": MODEL.config, "head": MODEL.head, "topk": MODEL.topk}
    engine.model = type("Counted", (), parts)()
    engine.model.forward = counted
    return rows


def test_a_beginning_that_all_share_is_read_once_in_a_first_wave() -> None:
    prompts = [[*SHARED, 8, i] for i in range(16)]
    params = SamplingParams(temperature=0, max_tokens=1)
    engine = engine_for(MODEL, max_num_seqs=16, prefill_chunk=64)
    rows = counting(engine)
    runs = complete(engine, prompts, params)
    assert sum(rows) == len(SHARED) + 2 + 15  # the last token of each is its own
    assert [run.seq.num_reused for run in runs] == [0] + 15 * [len(SHARED) + 1]
    assert [run.seq.generated for run in runs] == plain(MODEL, prompts, params)


def test_prompts_and_drafts_take_no_rows_from_each_other() -> None:
    prompts = [LOOPING[0], [9, *SHARED[:30]]]
    answers = plain(MODEL, prompts, GREEDY)
    told = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}
    engine = engine_for(MODEL, Scripted(told, lambda step: 4), prefill_chunk=8, draft_budget=3)
    assert engine.budgets == RowBudgets(prefill=8, draft=3)
    decoding = engine.add(prompts[0], GREEDY)
    while not decoding.has_begun:
        engine.step()
    reading = engine.add(prompts[1], GREEDY)
    rows = counting(engine)
    while not reading.has_begun:
        engine.step()
    assert rows == [8 + 4, 8 + 4, 8 + 4, 7 + 4]
    drain(engine)
    assert [run.seq.generated for run in (decoding, reading)] == answers


def test_a_cache_may_have_room_for_shorter_drafts_alone() -> None:
    config = EngineConfig(draft_budget=9)
    assert [RowBudgets.of(config, rows).draft for rows in (None, 4, 16)] == [9, 4, 9]


def test_completions_of_one_prompt_hold_its_blocks_once() -> None:
    engine = engine_for(MODEL, max_num_seqs=4)
    params = SamplingParams(temperature=1, seed=3, max_tokens=3)
    runs = [engine.add(SHARED, replace(params, seed=i)) for i in range(4)]
    rows = counting(engine)
    while not all(run.has_begun for run in runs):
        engine.step()
    assert sum(rows) < len(SHARED) + 2 * len(runs)
    assert engine.cache.pool.num_used == 2 + 4  # whole blocks, and the last one of each
    drain(engine)
    assert engine.cache.pool.num_used == 0


def test_without_memory_the_youngest_is_preempted_and_goes_on_where_it_was() -> None:
    prompts = [[*([i] * 50), *prompt] for i, prompt in enumerate(LOOPING, 1)]
    params = SamplingParams(temperature=0, max_tokens=80)
    answers = plain(MODEL, prompts, params)
    told = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}
    cache = MODEL.new_cache(3, 256, num_blocks=4)
    engine = engine_for(MODEL, Scripted(told, lambda step: step % 4), cache=cache)
    runs = [engine.add(prompt, params) for prompt in prompts]
    while engine.has_work:
        engine.step()
        assert cache.pool.num_used <= 4
    assert [run.seq.generated for run in runs] == answers
    assert engine.scheduler.memory_steps["preempted"] > 0
    stats = engine.stats
    assert min(stats.drafted, stats.accepted, stats.rejected) > 0


def test_a_sequence_that_is_read_again_finds_what_was_not_evicted() -> None:
    engine = engine_for(MODEL, cache=MODEL.new_cache(2, 256, num_blocks=4))
    (run,) = (engine.add(SHARED, GREEDY),)
    while not run.seq.generated:
        engine.step()
    engine.preempt(run.seq.id)
    assert engine.cache.pool.num_idle == 3
    rows = counting(engine)
    engine.step()
    assert rows == [1]


def test_without_room_for_its_rows_a_draft_is_left_out() -> None:
    answers = plain(MODEL, LOOPING, GREEDY)
    told = {tuple(prompt): answer for prompt, answer in zip(LOOPING, answers, strict=True)}
    engine = engine_for(MODEL, Scripted(told, lambda step: 3))
    cache, reserve = engine.cache, engine.cache.reserve
    cache.reserve = lambda slot, rows: (  # type: ignore[method-assign]
        (rows <= 1 or not cache.length(slot)) and reserve(slot, rows)
    )
    cache.free_rows = lambda slot: 1  # type: ignore[method-assign]
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == answers
    assert engine.stats.drafted == 0
