"""Prompts share passes: short ones come first, the oldest is never starved, answers keep their pace, tokens stay."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.base.contract import Drafter
from forerun.engine.prefill import LEAST_GAP_S, LEAST_ROWS, PrefillPace, rank, shares
from forerun.engine.sequence import SequenceState
from tests.engine.harness import (
    GREEDY,
    LOOPING,
    Clock,
    Scripted,
    complete,
    engine_for,
    plain,
    timed_engine,
)
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
LONG = [number * 5 % 23 for number in range(200)]
PROMPTS = (LONG, *LOOPING)
ANSWERS = {tuple(p): a for p, a in zip(PROMPTS, plain(MODEL, PROMPTS, GREEDY), strict=True)}
REMAINING = st.lists(st.integers(1, 3000), min_size=1, max_size=9)


@given(REMAINING, st.integers(1, 300))
def test_a_pass_is_filled_by_its_rule(remaining, budget):
    rows = shares(remaining, budget)
    assert all(0 <= own <= wanted for own, wanted in zip(rows, remaining, strict=True))
    assert 0 < sum(rows) <= budget
    shortest = min(remaining)
    assert rows[0] >= min(budget // 4, shortest)
    whole = [own for own, wanted in zip(rows, remaining, strict=True) if own == wanted]
    if shortest <= budget - budget // 4:
        assert whole, "a short prompt is read at once"
    if whole:
        assert sum(rows) - sum(whole) <= max(LEAST_ROWS, sum(whole))
    else:
        assert sum(rows) == budget


@given(st.integers(1, 40), st.integers(8, 256))
def test_short_prompts_without_end_do_not_starve_a_long_one(short, budget):
    left, steps = 2000, 0
    while left > 0:
        left -= shares([left, short, short, short], budget)[0]
        steps += 1
    assert steps <= 2000 / max(1, min(budget // 4, short)) + 1


RANKED = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(-1, 1), st.integers(0, 512)), min_size=1, max_size=9
)


@given(RANKED, st.integers(1, 300))
def test_priorities_and_short_answers_come_first_and_the_oldest_keeps_its_part(given_, budget):
    remaining, priorities, written = map(list, zip(*given_, strict=True))
    ranks = [(p, left + n) for left, p, n in zip(remaining, priorities, written, strict=True)]
    rows = shares(remaining, budget, ranks)
    assert all(0 <= own <= left for own, left in zip(rows, remaining, strict=True))
    assert 0 < sum(rows) <= budget
    first = min(range(len(ranks)), key=lambda i: (ranks[i][0], remaining[i] > budget, ranks[i][1]))
    assert rows[0] >= min(budget // 4, remaining[first], remaining[0])
    assert rows[first] >= min(remaining[first], budget - budget // 4)


def test_a_completion_of_a_few_tokens_comes_before_a_chat_of_the_same_length():
    engine = engine_for(MODEL, None, prefill_chunk=16)
    few, many = (replace(GREEDY, max_tokens=n) for n in (4, None))
    runs = [
        engine.add(LONG[start:90], params) for start, params in ((0, many), (1, many), (2, few))
    ]
    assert rank(runs[2].seq, 88) < rank(runs[1].seq, 89)
    while not runs[2].has_begun:
        engine.step()
    assert not any(run.has_begun for run in runs[:2])


def test_a_lower_number_comes_first_whatever_it_takes():
    engine = engine_for(MODEL, None, prefill_chunk=16)
    engine.add(LONG, GREEDY)
    short = engine.add(LOOPING[0], GREEDY)
    first = engine.add(LONG[1:], replace(GREEDY, priority=-1))
    while not first.has_begun:
        assert not short.has_begun
        engine.step()


def test_a_short_prompt_is_not_behind_a_long_one():
    engine = engine_for(MODEL, None, prefill_chunk=16)
    long = engine.add(LONG, replace(GREEDY, max_tokens=4))
    for _ in range(2):
        engine.step()
    short = engine.add(LOOPING[0], replace(GREEDY, max_tokens=4))
    while short.seq.finish_reason is None:
        engine.step()
    assert len(short.seq.generated) == 4
    assert not long.has_begun
    while long.seq.finish_reason is None:
        engine.step()
    alone = plain(MODEL, [LONG, LOOPING[0]], replace(GREEDY, max_tokens=4))
    assert [long.seq.generated, short.seq.generated] == alone


@pytest.mark.parametrize("arrival", range(0, 24, 3))
def test_tokens_stay_whenever_another_prompt_comes(arrival):
    engine = engine_for(MODEL, Scripted(ANSWERS, lambda step: step % 5), prefill_chunk=16)
    runs = [engine.add(LONG, GREEDY), engine.add(LOOPING[0], GREEDY)]
    for step in itertools.count():
        if step == arrival:
            runs.append(engine.add(LOOPING[1], GREEDY))
        if step >= arrival and not engine.has_work:
            break
        engine.step()
    assert [run.seq.generated for run in runs] == [ANSWERS[tuple(p)] for p in PROMPTS[:3]]
    assert engine.stats.accepted > 0
    assert engine.stats.rejected > 0


def test_answers_keep_their_pace_beside_a_prompt():
    """A plain pass takes 1.1 s here and a row 0.1 s more: eleven rows of a prompt double it."""
    clock = Clock()
    engine = timed_engine(
        MODEL, Drafter(), clock, row_s=0.1, draft_s=0.0, controller=False, prefill_chunk=64
    )
    complete(engine, LOOPING[:1], GREEDY)
    run = engine.add(LOOPING[0], replace(GREEDY, max_tokens=40))
    while len(run.seq.generated) < 5:
        engine.step()
    long = engine.add(LONG, replace(GREEDY, max_tokens=1))
    gaps = []
    while not long.has_begun and run.seq.finish_reason is None:
        begun_s = clock.now
        engine.step()
        gaps.append(clock.now - begun_s)
    assert max(gaps[2:]) < 2.5
    assert len(gaps) > 10


def test_the_pace_follows_what_rows_cost():
    pace = PrefillPace(256)
    assert pace.budget(is_decoding=True) == 256, "nothing is known"
    for _ in range(30):
        pace.pass_s = 0.2
        pace.learn(257, 256, 0.2 + 256 * 0.01)
    assert pace.budget(is_decoding=False) == 256
    assert pace.budget(is_decoding=True) == pytest.approx(20, abs=1)
    for _ in range(30):
        pace.learn(21, 20, 0.2 + 20 * 0.02)  # fewer rows at a time cost more each
    assert pace.budget(is_decoding=True) == pytest.approx(10, abs=1)
    quick = PrefillPace(256)
    for _ in range(30):
        quick.pass_s = 0.004
        quick.learn(256, 256, 256 * 0.0004)
    assert quick.budget(is_decoding=True) == pytest.approx(LEAST_GAP_S / 0.0004, abs=2)


ROW_S, EVERY_S = 0.15, 100.0
"""A pass takes 1 s and this for each further row, about what 1.5B parameters take on a CPU in units of 50 ms; and the
time between two questions: 5 s in those units."""


class Day:
    """An engine in time that a test counts: what came when, and when it had its first token."""

    def __init__(self, **options: int) -> None:
        self.clock = Clock()
        model = tiny_model(3, sharpness=3.0, max_position=8192)
        cache = model.new_cache(options.pop("max_num_seqs", 8), 8192)
        self.engine = timed_engine(
            model, Drafter(), self.clock, row_s=ROW_S, draft_s=0.0, cache=cache, **options
        )
        self.first_s: dict[int, float] = {}
        self.longest_step_s = 0.0

    def add(self, num_prompt: int, **params: object) -> SequenceState:
        """Queue a prompt that shares no beginning with the others."""
        number = len(self.engine.sequences) + len(self.first_s)
        prompt = [number % 23, *((number + 7 * i) % 23 for i in range(num_prompt - 1))]
        return self.engine.add(prompt, replace(GREEDY, ignore_eos=True, **params))

    def step(self) -> None:
        start_s = self.clock.now
        for event in self.engine.step():
            self.first_s.setdefault(event.seq_id, self.clock.now)
        self.longest_step_s = max(self.longest_step_s, self.clock.now - start_s)

    def until(self, run: SequenceState) -> float:
        """Step until a sequence has its first token; when that was."""
        while run.seq.id not in self.first_s:
            self.step()
        return self.first_s[run.seq.id]


def test_a_question_beside_an_agents_prompt_waits_little_and_the_agent_hardly():
    """At most twice its time alone and a step for a question, 1.15 times for the 8,000 tokens beside it."""
    alone_s = (day := Day()).until(day.add(30, max_tokens=8))
    long_alone_s = (day := Day()).until(day.add(8000, max_tokens=1))
    day = Day()
    long, asked, waited = day.add(8000, max_tokens=1), 0.0, []
    while not long.has_begun and long.seq.finish_reason is None:
        day.step()
        if day.clock.now - asked >= EVERY_S and long.seq.id not in day.first_s:
            asked = day.clock.now
            waited.append(day.until(day.add(30, max_tokens=8)) - asked)
    assert len(waited) >= 10
    assert max(waited) <= 2 * alone_s + day.longest_step_s
    assert day.first_s[long.seq.id] <= 1.15 * long_alone_s


def test_eight_short_prompts_come_before_a_long_one():
    day = Day(max_num_seqs=9)
    long = day.add(6000, max_tokens=1)
    day.step()
    short = [day.add(30 + i, max_tokens=4) for i in range(8)]
    last_s = max(day.until(run) for run in short)
    assert long.seq.id not in day.first_s
    assert last_s <= 4 * day.longest_step_s
