"""The controller in a scripted world: known costs, known acceptance, no clock. It must find what pays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun._native import CostCurve
from forerun.core.types import Draft, Seq
from forerun.engine.controller import Adaptive, Controller, Fixed
from forerun.engine.model_price import EXPLORATION
from tests.engine.harness import (
    GREEDY,
    LOOPING,
    Clock,
    Scripted,
    complete,
    drain,
    engine_for,
    plain,
    timed_engine,
)
from tests.engine.worlds import WRONG, Trees, World, step_of
from tests.tiny import tiny_model

FULL = 8


def rate(num_steps: int = 1000, num_seqs: int = 1, controller=None, **world) -> float:
    return World(**world).run(controller or Adaptive(FULL), num_steps, num_seqs)


def always(chance: float) -> Callable[[int, int], float]:
    return lambda step, seq: chance


WORLDS = {
    "good and cheap": {"acceptance": always(0.8)},
    "fair": {"acceptance": always(0.5), "row_s": 0.15},
    "poor": {"acceptance": always(0.2), "row_s": 0.3},
    "never right": {"acceptance": always(0.0)},
    "rows as expensive as passes": {"acceptance": always(0.9), "row_s": 1.0},
    "seldom says something": {"acceptance": always(0.7), "says_something": 0.1},
    "a draft model": {"acceptance": always(0.7), "draft_s": lambda n: 0.15 * n},
    "an expensive draft model": {"acceptance": always(0.7), "draft_s": lambda n: 0.8 * n},
}


@cache
def fixed_rates(name: str, num_seqs: int) -> dict[int, float]:
    """Of fixed budgets in a world, by size."""
    sizes = (0, 1, 2, 3, 4, 6, FULL)
    return {k: rate(400, num_seqs, Fixed(k), **WORLDS[name]) for k in sizes}


@pytest.mark.parametrize("name", WORLDS)
# Of several sequences `test_draft_length.py` has worlds in the fast run.
@pytest.mark.parametrize("num_seqs", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_it_comes_close_to_the_best_fixed_budget_and_is_never_slower(name, num_seqs):
    world, fixed = WORLDS[name], fixed_rates(name, num_seqs)
    seeds = (7, 8, 9)
    found = fmean(rate(2000, num_seqs, seed=seed, **world) for seed in seeds)
    assert found >= 0.975 * fixed[0]
    assert found >= 0.95 * max(fixed.values())
    disturbed = fmean(rate(2000, num_seqs, noise=0.3, seed=seed, **world) for seed in seeds)
    assert disturbed >= 0.96 * fixed[0]
    assert disturbed >= 0.9 * max(fixed.values())


def test_a_slow_drafter_that_is_never_right_costs_less_than_three_percent():
    world = {"acceptance": always(0.0), "draft_s": lambda n: 5.0}
    assert rate(num_steps=600, **world) >= 0.97 * rate(controller=Fixed(0))
    assert rate(num_steps=4000, **world) >= 0.99 * rate(controller=Fixed(0))


@pytest.mark.parametrize("period", [500, 1000])
def test_it_notices_when_the_acceptance_turns(period):
    turning = lambda step, seq: 0.85 if step // period % 2 else 0.05  # noqa: E731
    world = {"acceptance": turning, "row_s": 0.25, "draft_s": lambda n: 0.05}
    steps = 6 * period
    assert rate(steps, **world) >= 1.1 * rate(steps, controller=Fixed(0), **world)
    assert rate(steps, **world) >= 1.05 * rate(steps, controller=Fixed(FULL), **world)


def test_a_machine_that_slows_down_for_a_while_does_not_mislead_it():
    swings = lambda step: 3.0 if step // 50 % 2 else 1.0  # noqa: E731
    for name in ("good and cheap", "poor", "a draft model"):
        world = WORLDS[name] | {"slowdown": swings, "noise": 0.1}
        fixed = [rate(controller=Fixed(k), **world) for k in range(FULL + 1)]
        assert rate(**world) >= 0.9 * max(fixed)


def test_budgets_shrink_as_the_batch_grows_where_rows_are_expensive():
    """A pass over up to four rows is nearly free, each further row costs as much as a token is worth."""

    class Full(World):
        def pass_s(self, num_rows):
            return 1 + 0.02 * num_rows + 0.5 * max(0, num_rows - 4)

    drafted = {}
    for num_seqs in (1, 4, 8):
        world = Full(acceptance=always(0.6))
        world.run(Adaptive(FULL), 800, num_seqs)
        drafted[num_seqs] = sum(map(sum, map(dict.values, world.kept))) / 800 / num_seqs
    assert drafted[1] > 1.5
    assert drafted[4] < drafted[1] / 4
    assert drafted[8] < 0.2


def test_drafts_are_as_long_as_the_context_allows():
    """400 steps above 200 tokens, 400 above 8,000, and back; what a row's attention costs is known to a factor."""

    def rate(share):
        long = lambda step: 8000 if 400 <= step < 800 else 200  # noqa: E731
        world = World(acceptance=always(0.65), row_s=0.06, context=long, key_s=0.03, noise=0.05)
        controller = Adaptive(FULL, row_cost=lambda context: share * 0.03 * context / 1000)
        return world.run(controller, 1200, num_seqs=4)

    unaware = rate(0)
    assert rate(1) > 1.05 * unaware
    assert rate(0.5) > 1.02 * unaware
    assert rate(2) > 1.02 * unaware


def test_a_first_pass_that_is_slow_is_not_the_unit_of_costs():
    """As the first one is, which touches the weights."""
    controller, seq = Adaptive(FULL), Seq(0, [1, 2], GREEDY, 0)
    for num_rows, pass_s in ((1, 10.0), (1, 1.0), *[(4, 1.15), (1, 1.0)] * 2):
        steps = [step_of(seq)]
        controller.budgets(steps)
        controller.learn(steps, num_rows, 0.0, pass_s)
    assert controller.pass_cost.predict(1) == pytest.approx(1, rel=0.05)
    assert controller.pass_cost.predict(4) == pytest.approx(1.15, rel=0.05)


def test_sequences_get_budgets_of_their_own():
    world = Trees(ease=lambda seq: (0.2, 3.0)[seq], passes=CostCurve({1: 1.0, 2: 1.3}))
    world.run(Adaptive(FULL), 1000, num_seqs=2)
    low, high = (sum(kept[i] for kept in world.kept[600:]) for i in (0, 1))
    assert high > 3 * low


def test_nodes_that_only_pay_together_are_kept_together():
    """The first four nodes are never right: only with those behind them is a draft worth anything."""

    class Late(World):
        def draft(self, step, seq):
            tree = Draft((*range(8),), (-1, -1, -1, -1, -1, 4, 5, 6))
            return tree, [4, 5, 6, WRONG]

    world = Late(row_s=0.1)
    world.run(Adaptive(FULL), 200)
    used = [b[0] for b in world.budgets]
    assert sum(k >= 7 for k in used) > 150
    assert not any(0 < k < 5 for k in used)


def test_trials_in_vain_take_their_share_of_the_time():
    world = World(acceptance=always(0.0), draft_s=lambda n: 1.0)
    world.run(Adaptive(FULL), 5000)
    asked = [bool(b[0]) for b in world.budgets[500:]]
    assert 0.5 * EXPLORATION < sum(asked) / len(asked) < 1.5 * EXPLORATION


def test_a_plan_that_is_as_good_stands():
    world = World(acceptance=always(0.6), row_s=0.12, noise=0.2)
    world.run(Adaptive(FULL), 1000)
    used = [b[0] for b in world.budgets[200:]]
    changes = sum(a != b for a, b in itertools.pairwise(used))
    assert changes < len(used) / 8


# In the engine.

MODEL = tiny_model(3, sharpness=3.0)
ANSWERS = {tuple(p): a for p, a in zip(LOOPING, plain(MODEL, LOOPING, GREEDY), strict=True)}


class Replay(Controller):
    """Any budgets at all."""

    def __init__(self, budgets):
        self.coming = iter(budgets)

    def budgets(self, steps, num_others=0, *, is_reading=False):
        for step in steps:
            step.budget = next(self.coming, 3)


@given(st.lists(st.integers(0, 6), max_size=60))
@settings(max_examples=20)
def test_no_sequence_of_budgets_changes_a_token(budgets):
    engine = engine_for(MODEL, Scripted(ANSWERS, lambda step: step % 5))
    engine.proposer.controller = Replay(budgets)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())


def test_a_budget_is_a_bound_for_each_sequence():
    engine = engine_for(MODEL, Scripted(ANSWERS, lambda step: 4))
    engine.proposer.controller = Replay([0, 1, 3] * 40)
    runs = complete(engine, LOOPING, GREEDY)
    assert all(run.stats.drafted <= 3 * run.stats.passes for run in runs)
    assert engine.stats.accepted > 0


@pytest.mark.parametrize(
    ("right", "draft_s", "low", "high"), [(0, 5.0, 0.97, 1.0), (4, 0.05, 2.5, 5.0)]
)
def test_the_engine_asks_the_controller(right, draft_s, low, high):
    clock = Clock()
    drafter = Scripted(ANSWERS, lambda step: right)
    engine = timed_engine(MODEL, drafter, clock, row_s=0.1, draft_s=draft_s, controller=True)
    steps = 0
    for _ in range(25):
        runs = complete(engine, LOOPING[:1], GREEDY)
        assert runs[0].seq.generated == ANSWERS[tuple(LOOPING[0])]
        steps += GREEDY.max_tokens - 1
    prompts_s = 25 * (1 + 0.1 * 0)  # the prompt's rows are reused but for the last
    speedup = steps / (clock.now - prompts_s)
    assert low <= speedup <= high


UNDRAFTED = replace(GREEDY, max_draft=0)


@pytest.mark.parametrize("num_undrafted", [1, 2])
def test_a_request_without_drafts_costs_its_neighbours_none(num_undrafted):
    """In a process that has measured nothing yet, and later."""
    drafter = Scripted(ANSWERS, lambda step: 4)
    engine = timed_engine(MODEL, drafter, Clock(), row_s=0.1, draft_s=0.05, controller=True)
    for _ in range(3):
        plain = [engine.add(prompt, UNDRAFTED) for prompt in LOOPING[1:][:num_undrafted]]
        drafted = engine.add(LOOPING[0], GREEDY)
        drain(engine)
        assert drafted.stats.accepted > 20
        assert not any(run.stats.drafted for run in plain)


def test_what_runs_without_drafts_is_no_measure_of_drafting():
    drafter = Scripted(ANSWERS, lambda step: 0)
    engine = timed_engine(MODEL, drafter, Clock(), row_s=0.5, draft_s=5, controller=True)
    complete(engine, LOOPING[:1], GREEDY)
    before = engine.stats.drafted
    for _ in range(5):
        complete(engine, LOOPING, UNDRAFTED)
    complete(engine, LOOPING[:1], GREEDY)
    assert engine.stats.drafted - before <= 4  # a trial at most


def test_costs_are_learned_while_prompts_are_read_all_the_time():
    clock, fresh = Clock(), itertools.count()
    drafter = Scripted(ANSWERS, lambda step: 4)
    engine = timed_engine(
        MODEL, drafter, clock, row_s=0.1, draft_s=0.05, controller=True, prefill_chunk=16
    )
    run, reading = engine.add(LOOPING[0], GREEDY), None
    while run.seq.id in engine.sequences:
        if reading is None or reading.seq.id not in engine.sequences:
            prompt = [next(fresh) * 5 % 23 for _ in range(200)]
            reading = engine.add(prompt, replace(GREEDY, max_tokens=1))
        engine.step()
    assert run.seq.generated == ANSWERS[tuple(LOOPING[0])]
    assert run.stats.accepted > 20


def test_a_drafter_that_pays_only_for_one_guess_is_not_left_off():
    """Five guesses cost more than they bring, and the first draft, which reads the prompt, uses up all trials.

    It goes on with one guess because smaller drafts are hoped to cost less before any was made.
    """
    reading = iter([20.0])
    world = World(
        row_s=0.1,
        draft_s=lambda n: next(reading, 0.4 * n),
        acceptance=lambda step, seq: 0.8,
        length=5,
    )
    controller = Adaptive(FULL)
    world.run(controller, 30)
    plain = World(row_s=0.1).run(Fixed(0), 100)
    assert world.run(controller, 100) > 1.1 * plain


def test_joining_and_leaving_under_control_changes_nothing():
    engine = engine_for(MODEL, Scripted(ANSWERS, lambda step: step % 5), controller=True)
    runs = [engine.add(LOOPING[0], GREEDY)]
    for prompt in LOOPING[1:]:
        for _ in range(4):
            engine.step()
        runs.append(engine.add(prompt, GREEDY))
    engine.preempt(runs[0].seq.id)
    drain(engine)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())
