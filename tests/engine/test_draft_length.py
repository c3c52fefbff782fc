"""The controller against brute force, and its choices where the best one is known, on trees with confidences."""

from __future__ import annotations

import random
from functools import cache, partial
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun._native import CostCurve
from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.decoding.grammar import limit
from forerun.engine.controller import MARGIN, Adaptive, Fixed
from forerun.engine.sequence import SequenceStep
from tests.engine.worlds import NEW_ROWS, Oracle, Routed, Trees, step_of

_native = pytest.importorskip("forerun._native")

ALL = 8


def sure(*confidence: float, parents: tuple[int, ...] | None = None) -> Draft:
    """A draft of tokens 1, 2, ... that says so of its nodes."""
    length = len(confidence)
    return Draft(tuple(range(1, length + 1)), parents or tree.chain(length), confidence)


def steps(num: int) -> list[SequenceStep]:
    return [step_of(Seq(i, [1], SamplingParams(temperature=0), 0)) for i in range(num)]


def kept(found: Adaptive, *drafts: Draft) -> list[Draft]:
    """What it lets through of the drafts of one step."""
    of = steps(len(drafts))
    for step, draft in zip(of, drafts, strict=True):
        step.draft = step.proposed = draft
    found.trim(of)
    return [step.draft for step in of]


class Rates:
    """The native rates, of drafts as they are."""

    def __init__(self):
        self.native = _native.AcceptanceRates()

    def paths(self, draft: Draft) -> list[float]:
        return self.native.paths(draft.parents, draft.confidence)

    def record(self, draft: Draft, tokens: tuple[int, ...]) -> None:
        self.native.record(draft.tokens, draft.parents, draft.confidence, tokens)


def controller(row: float, num_seqs: int = 1) -> Adaptive:
    """One that knows that a pass costs 1 and `row` more for each further row, in a step."""
    found = Adaptive(ALL, {1: 1.0, 2: 1.0 + row})
    found.budgets(steps(num_seqs))
    return found


def trees(most: int = 7):
    node = st.tuples(st.integers(0, 6), st.floats(0.02, 0.98))
    return st.lists(node, min_size=1, max_size=most).map(
        lambda nodes: sure(
            *(c for _, c in nodes), parents=tuple(p % (i + 1) - 1 for i, (p, _) in enumerate(nodes))
        )
    )


@given(trees(), st.floats(0.01, 0.9))
def test_what_is_kept_is_the_best_of_all_cuts(draft, row):
    """Alone and at the plain speed, a node is worth its chance and a row a little more than it takes."""
    chances = Rates().paths(draft)
    gains = [sum(chances[:k]) - MARGIN * row * k for k in range(len(draft) + 1)]
    second, best = sorted(gains)[-2:]
    assume(best - second > 1e-3)
    assert kept(controller(row), draft) == [draft.trim(gains.index(best))]


def test_a_node_is_kept_where_its_chance_exceeds_its_row_by_a_quarter():
    """The best of many estimates is overestimated: a row of a fifth of a pass takes a chance of a quarter."""
    each = [kept(controller(0.2), sure(chance)) for chance in (0.24, 0.26)]
    assert [len(draft) for (draft,) in each] == [0, 1]


@given(st.lists(trees(4), min_size=1, max_size=5), st.floats(0, 0.5))
def test_a_cut_draft_is_a_beginning_of_it(drafts, row):
    cut = kept(controller(row, len(drafts)), *drafts)
    assert all(part == draft.trim(len(part)) for part, draft in zip(cut, drafts, strict=True))


def test_free_rows_are_all_kept_and_expensive_ones_cut():
    drafts = [sure(0.5, 0.1, 0.1), sure(0.5, 0.5, 0.5), EMPTY_DRAFT]
    assert kept(controller(0.0, 3), *drafts) == drafts
    assert [len(draft) for draft in kept(controller(0.9, 3), *drafts)] == [0, 0, 0]


def test_rates_begin_with_what_the_drafter_says_and_end_with_what_was_seen():
    rates, rng = Rates(), random.Random(3)
    assert rates.paths(sure(0.9)) == pytest.approx([0.9])
    for _ in range(400):
        rates.record(sure(0.9), (1,) if rng.random() < 0.3 else (5,))
    assert rates.paths(sure(0.9)) == pytest.approx([0.3], abs=0.12)
    assert rates.paths(sure(0.2)) == pytest.approx([0.2])


@given(st.floats(0, 1), st.booleans())
def test_rates_are_probabilities_whatever_is_said(confidence, is_right):
    rates = Rates()
    rates.record(sure(confidence), (1,) if is_right else (9,))
    assert all(0 <= rate <= 1 for rate in rates.paths(sure(confidence)))


def test_a_draft_that_was_never_verified_is_judged_by_what_was_said():
    """Of two children of the root one came true, and of its two children neither; the others are not judged."""
    draft = sure(0.5, 0.5, 0.1, 0.9, 0.1, parents=(-1, -1, 0, 1, 1))
    seen, rates = Rates(), Rates()
    for confidence, is_hit in ((0.5, False), (0.5, True), (0.9, False), (0.1, False)):
        seen.record(sure(confidence), (1,) if is_hit else (9,))
    rates.record(draft, (2, 9))
    for confidence in (0.1, 0.5, 0.9):
        assert rates.paths(sure(confidence)) == seen.paths(sure(confidence))


def asked(found: Adaptive, draft: Draft, num_steps: int, ask_s: float) -> int:
    """Of so many steps of one sequence, in how many the drafter was asked; its draft is the same each time."""
    count = 0
    for _ in range(num_steps):
        (step,) = one = steps(1)
        found.budgets(one)
        if step.budget:
            count += 1
            step.draft = step.proposed = draft
            found.trim(one)
        num_kept = len(step.draft)
        step.outcome = Outcome(tuple(range(num_kept)), (*step.draft.tokens, 99))
        found.learn(one, 1 + num_kept, ask_s if step.budget else 0.0, 1 + 0.2 * num_kept)
    return count


def test_who_brings_nothing_is_not_asked_and_some_good_drafts_bring_it_back():
    found = controller(0.2)
    asked(found, EMPTY_DRAFT, 300, 0.05)
    assert asked(found, EMPTY_DRAFT, 100, 0.05) <= 20
    asked(found, sure(0.95, 0.95, 0.95), 200, 0.05)
    assert asked(found, sure(0.95, 0.95, 0.95), 100, 0.05) >= 95


def test_one_slow_answer_does_not_make_asking_expensive():
    found, good = controller(0.2), sure(0.9, 0.9)
    asked(found, good, 100, 0.02)
    asked(found, good, 1, 50.0)
    assert asked(found, good, 50, 0.02) >= 45
    asked(found, good, 60, 50.0)  # but one that stays slow does
    assert asked(found, good, 100, 50.0) <= 4


# Trees that state confidences: what the drafters that cost nothing to ask bring.

AVX2 = CostCurve({1: 1.0, 2: 1.08, 4: 1.33, 8: 2.29, 16: 4.08, 32: 7.8})
FLAT = CostCurve({1: 1.0, 4: 1.05, 8: 1.15, 16: 1.4})
WORLDS = [
    pytest.param(partial(Trees, passes=passes, doubt=doubt), id=f"{name}, doubt {doubt}")
    for name, passes in (("new", NEW_ROWS), ("avx2", AVX2), ("flat", FLAT))
    for doubt in (1.0, 0.6, 2.0)
]


@cache
def best_fixed(world) -> int:
    return max(range(12), key=lambda k: world().run(Fixed(k), 300))


@pytest.mark.parametrize("world", WORLDS)
def test_it_is_within_two_percent_of_who_knows_all_costs_and_chances(world):
    """The mean of three seeds: single ones differ by a hundredth."""
    each = [partial(world, seed=seed) for seed in (7, 8, 9)]
    shares = [one().run(Adaptive(11), 700) / Oracle.rate_of(one, 700) for one in each]
    assert fmean(shares) >= 0.98


@pytest.mark.parametrize(
    ("passes", "best", "gain"),
    [(AVX2, 3, 1.2), (FLAT, 7, 1.0), (CostCurve({1: 1.0, 16: 1.0}), 15, 1.04)],
    ids=["two cores", "eight", "sixteen"],
)
def test_how_many_of_fifteen_nodes_are_verified_follows_the_price_of_rows(passes, best, gain):
    """Nearly as fast as the best fixed size, and faster than the seven nodes of a drafter that is not cut."""
    world = partial(Trees, passes=passes, nodes=15)
    rate, fixed, seven = (world().run(c, 1000) for c in (Adaptive(63), Fixed(best), Fixed(7)))
    assert rate >= 0.98 * fixed
    assert rate >= gain * seven


@pytest.mark.parametrize("world", WORLDS)
def test_the_first_64_tokens_of_a_process_are_drafted_in_nearly_full(world):
    """Against the best fixed size, in the same steps, over twenty processes."""

    def seconds(controller):
        runs = (world(seed=seed).run(controller(), 64, num_tokens=64) for seed in range(20))
        return sum(1 / rate for rate in runs)

    best = partial(Fixed, best_fixed(world))
    assert seconds(best) >= 0.92 * seconds(partial(Adaptive, 63))


@pytest.mark.parametrize("world", WORLDS)
def test_a_busy_machine_does_not_mislead_it(world):
    """A fifth of the passes take three times as long; counted without that, it loses hardly anything."""
    quiet, noisy = (
        sum(world(seed=seed, hiccups=share).run(Adaptive(11), 600) for seed in (1, 2, 3))
        for share in (0.0, 0.2)
    )
    assert noisy >= 0.97 * quiet


@pytest.mark.parametrize("num_seqs", [1, 4, 8])
@pytest.mark.parametrize("ask", [0.01, 0.1, 1.0])
def test_a_useless_drafter_costs_at_most_two_percent(ask, num_seqs):
    world = partial(Trees, doubt=30.0, ask=ask)
    assert world().run(Adaptive(11), 1000, num_seqs) >= 0.98 * world().run(Fixed(0), 50, num_seqs)


@pytest.mark.parametrize("num_seqs", [1, 4])
@pytest.mark.parametrize(("doubt", "gain"), [(30.0, 0.97), (1.0, 1.0)])
def test_where_rows_choose_experts_it_drafts_only_what_pays(doubt, gain, num_seqs):
    """No fixed size gains anything here, and a useless drafter costs little."""
    world = partial(Routed, doubt=doubt)
    fixed = [world().run(Fixed(k), 200, num_seqs) for k in (0, 1, 4, 11)]
    assert max(fixed) < 1.01 * fixed[0] > 1.2 * fixed[-1]
    assert world().run(Adaptive(11), 1000, num_seqs) >= gain * fixed[0]


@pytest.mark.parametrize(("num_seqs", "gain"), [(4, 1.03), (8, 0.98)])
def test_in_a_batch_it_is_at_least_as_good_as_every_fixed_size(num_seqs, gain):
    fixed = max(Trees().run(Fixed(k), 150, num_seqs) for k in range(5))
    assert Trees().run(Adaptive(11), 400, num_seqs) >= gain * fixed


def test_a_limited_draft_keeps_what_is_said_of_it():
    assert limit(sure(0.9, 0.8, 0.7), 2, None).confidence == (0.9, 0.8)


def test_a_trial_lasts_until_its_cost_is_known():
    """The first question after a pause takes longer, as the drafter reads what it missed: its time tells nothing."""
    found = Adaptive(ALL)
    asked = []
    for _ in range(2000):
        (step,) = one = steps(1)
        found.budgets(one)
        asked.append(bool(step.budget))
        if step.budget:
            step.draft = step.proposed = sure(*[0.5] * step.budget)
            found.trim(one)
        took_s = 0.0 if not step.budget else 0.5 if asked[-2:] == [True, True] else 2.0
        step.outcome = Outcome((), (99,))
        found.learn(one, 1 + len(step.draft), took_s, 1.0)
    late = "".join("x" if each else " " for each in asked[200:]).split()
    assert late
    assert {*late} == {"xx"}
