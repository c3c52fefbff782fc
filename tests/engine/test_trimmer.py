"""Cutting drafts by what the drafter says of them: against brute force, and in scripted worlds."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.costs import CostCurve
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.engine.acceptance import DraftResult
from forerun.engine.calibration import ConfidenceCalibrator
from forerun.engine.controller import Adaptive, Fixed
from forerun.engine.trimmer import SAFETY_MARGIN, Trimmer
from tests.engine.harness import GREEDY, LOOPING, Scripted, complete, engine_for, plain
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
ANSWERS = {tuple(p): a for p, a in zip(LOOPING, plain(MODEL, LOOPING, GREEDY), strict=True)}


def sure(*confidence: float, parents: tuple[int, ...] | None = None) -> Draft:
    """A draft of tokens 1, 2, ... that says so of its nodes."""
    length = len(confidence)
    return Draft(tuple(range(1, length + 1)), parents or tree.chain(length), None, confidence)


def costs(row: float, most: int = 24) -> CostCurve:
    """A pass costs 1 and `row` more for each further row."""
    curve = CostCurve()
    for _ in range(2):
        for rows in range(1, most + 1):
            curve.record(rows, 1 + row * (rows - 1))
    return curve


def trimmer(row: float, num_seqs: int = 1) -> Trimmer:
    found = Trimmer(costs(row))
    found.follow(range(num_seqs))
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
    chances = ConfidenceCalibrator().reach(draft, 0.0)
    gains = [sum(chances[:k]) - SAFETY_MARGIN * row * k for k in range(len(draft) + 1)]
    second, best = sorted(gains)[-2:]
    assume(best - second > 1e-3)
    kept = trimmer(row).trim({0: draft})[0]
    assert kept == draft.trim(gains.index(best))


@given(st.lists(trees(4), min_size=1, max_size=5), st.floats(0, 0.5))
def test_a_cut_draft_is_a_beginning_of_it(drafts, row):
    given_ = dict(enumerate(drafts))
    kept = trimmer(row, len(drafts)).trim(given_)
    assert kept.keys() == given_.keys()
    assert all(kept[i] == draft.trim(len(kept[i])) for i, draft in given_.items())


def test_free_rows_are_all_kept_and_silent_drafts_stay_whole():
    drafts = {0: sure(0.5, 0.1, 0.1), 1: Draft.chain([1, 2, 3]), 2: EMPTY_DRAFT}
    assert trimmer(0.0, 3).trim(drafts) == drafts
    kept = trimmer(0.9, 3).trim(drafts)
    assert [len(kept[i]) for i in range(3)] == [0, 3, 0]


def test_in_a_batch_the_node_of_a_slow_sequence_is_worth_more():
    found = trimmer(0.15, 2)
    drafts = {0: sure(0.5), 1: sure(0.5)}
    assert [len(d) for d in found.trim(drafts).values()] == [1, 1]
    for _ in range(50):  # the first emits three tokens a step, the second one, in the time of 1.2
        found.learn([DraftResult(0, 0, (0, 0)), DraftResult(1, 0, ())], 1.2, None)
    assert [len(d) for d in found.trim(drafts).values()] == [0, 1]


def test_the_speed_of_a_sequence_is_that_of_late():
    found = trimmer(0.15)
    for path in [(0, 0)] * 200 + [()] * 200:
        found.learn([DraftResult(0, 0, path)], 1.0, None)
    assert 1 < found._states[0].speedup < 1.1


def test_calibration_begins_with_what_the_drafter_says_and_ends_with_what_it_saw():
    calibrator, rng = ConfidenceCalibrator(), random.Random(3)
    assert calibrator.chance(0.9) == pytest.approx(0.9)
    for _ in range(400):
        calibrator.judge(sure(0.9), (1,) if rng.random() < 0.3 else (5,), 0.0)
    assert calibrator.chance(0.9) == pytest.approx(0.3, abs=0.08)
    assert calibrator.chance(0.2) == pytest.approx(0.2)


def test_a_draft_that_was_never_verified_is_judged_by_what_was_said():
    """Of two children of the root one came true, and of its two children neither; the others are not judged."""
    draft = sure(0.5, 0.5, 0.1, 0.9, 0.1, parents=(-1, -1, 0, 1, 1))
    seen, calibrator = ConfidenceCalibrator(), ConfidenceCalibrator()
    for confidence, is_hit in ((0.5, False), (0.5, True), (0.9, False), (0.1, False)):
        seen.judge(sure(confidence), (1,) if is_hit else (9,), 0.0)
    calibrator.judge(draft, (2, 9), 0.0)
    for confidence in (0.1, 0.5, 0.9):
        assert calibrator.chance(confidence) == seen.chance(confidence)


def test_a_sequence_that_disappoints_is_trusted_less_than_others():
    calibrator, bias = ConfidenceCalibrator(), 0.0
    for _ in range(30):
        bias = calibrator.judge(sure(0.7), (9,), bias)
        calibrator.judge(sure(0.7), (1,), 0.0)
    assert calibrator.chance(0.7, bias) < calibrator.chance(0.7) - 0.2


def test_who_brings_nothing_is_not_asked_and_one_good_draft_brings_it_back():
    found = trimmer(0.2)
    for _ in range(40):
        found.trim({0: EMPTY_DRAFT})
        found.learn([DraftResult(0, 0, ())], 1.05, 0.05)
    assert found.wanted([0]) == []
    found.trim({0: sure(0.95, 0.95, 0.95)})
    assert found.wanted([0]) == [0]


def test_one_slow_answer_does_not_make_asking_expensive():
    found = trimmer(0.2)
    for ask_cost in (*[0.02] * 20, 50.0):
        found.trim({0: sure(0.7)})
        found.learn([DraftResult(0, 0, ())], 1.05, ask_cost)
    assert found.wanted([0]) == [0]
    for _ in range(60):  # but one that stays slow does
        found.trim({0: sure(0.7)})
        found.learn([DraftResult(0, 0, ())], 1.05, 50.0)
    assert found.wanted([0]) == []


def test_a_few_drafts_may_be_silent_about_themselves():
    found = trimmer(0.2)
    assert not found.is_confident
    for i in range(100):
        found.trim({0: Draft.chain([1]) if i % 30 == 15 else sure(0.7)})
        assert found.is_confident or i == 15
    for _ in range(10):
        found.trim({0: Draft.chain([1])})
    assert not found.is_confident


class Prophet:
    """A world of chains that are right as often as they say, or as `truth` says."""

    def __init__(self, confidences, truth=lambda c: c, row=0.25, ask=0.015):
        self.confidences, self.truth, self.row, self.ask = confidences, truth, row, ask
        self.rng = random.Random(11)

    def run(self, controller, num_steps=1500, num_seqs=1) -> float:
        """Tokens a second."""
        seqs = [Seq(i, [1], SamplingParams(temperature=0), 0) for i in range(num_seqs)]
        tokens = seconds = 0.0
        for _ in range(num_steps):
            budgets = controller.budgets(seqs)
            drafts = {i: self.draft().trim(k) for i, k in budgets.items() if k}
            kept = controller.trim(drafts)
            trials = [self.trial(i, drafts.get(i), kept.get(i, EMPTY_DRAFT)) for i in budgets]
            rows = num_seqs + sum(trial.num_nodes for trial in trials)
            draft_s, pass_s = self.ask * len(drafts), 1 + self.row * (rows - 1)
            controller.learn(trials, rows, draft_s, pass_s)
            tokens += sum(len(trial.tokens) for trial in trials)
            seconds += draft_s + pass_s
        return tokens / seconds

    def draft(self) -> Draft:
        return sure(*[self.rng.choice(self.confidences)] * 4)

    def trial(self, seq_id: int, draft: Draft | None, kept: Draft) -> DraftResult:
        right = 0
        for confidence in draft.confidence if draft else ():
            if self.rng.random() >= self.truth(confidence):
                break
            right += 1
        path = tuple(range(min(right, len(kept))))
        return DraftResult(
            seq_id, len(kept), path, (*kept.tokens[: len(path)], self.next(right, path))
        )

    def next(self, right: int, path: tuple[int, ...]) -> int:
        return len(path) + 1 if right > len(path) else 99


@pytest.mark.parametrize(("num_seqs", "gain"), [(1, 1.15), (4, 1.01)])
def test_a_drafter_that_knows_beats_every_fixed_budget(num_seqs, gain):
    world = ((0.05, 0.05, 0.05, 0.95), lambda c: c, 0.3)
    fixed = max(Prophet(*world).run(Fixed(k), 800, num_seqs) for k in range(5))
    assert Prophet(*world).run(Adaptive(4), 1500, num_seqs) > gain * fixed


@pytest.mark.parametrize("num_seqs", [1, 4, 8])
@pytest.mark.parametrize("says", [(0.05,), (0.95,), (0.1, 0.5, 0.9)])
def test_an_overconfident_drafter_costs_less_than_two_percent(says, num_seqs):
    world = (says, lambda c: 0.02)
    plain_rate = Prophet(*world).run(Fixed(0), 100, num_seqs)
    assert Prophet(*world).run(Adaptive(4), 1500, num_seqs) > 0.98 * plain_rate


class Knowing(Scripted):
    """Says of its guesses that they are sure or not, at random."""

    def _propose_one(self, seq, length):
        draft = super()._propose_one(seq, length)
        rng = random.Random(len(seq.tokens))
        return Draft(draft.tokens, draft.parents, None, tuple(rng.random() for _ in draft.tokens))


@given(st.integers(0, 4))
def test_no_cut_changes_a_token(right):
    engine = engine_for(MODEL, Knowing(ANSWERS, lambda step: right), controller=True)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())


def test_a_seeded_request_is_not_cut_where_drafts_are_drawn():
    controller = Adaptive(4, keeps_seeds=True)
    seq = Seq(0, [1], SamplingParams(seed=1), 0)
    for _ in range(100):
        assert controller.budgets([seq]) == {0: 4}
        assert len(controller.trim({0: sure(0.05, 0.05)})[0]) == 2
        controller.learn([DraftResult(0, 2, (), (9,))], 3, 0.01, 3.0)


def test_what_is_said_of_a_draft_fits_it():
    with pytest.raises(ValueError, match="2 tokens but 1 of confidence"):
        Draft((1, 2), (-1, 0), None, (0.5,))
    with pytest.raises(ValueError, match="would bias"):
        Draft((1,), (-1,), (None,), (0.5,))
    assert sure(0.9, 0.8, 0.7).trim_depth(2).confidence == (0.9, 0.8)
