"""Fallbacks: who is asked when, how they are spelled, and that tokens stay the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, LAST_HIDDEN, Features
from forerun.drafters import draft_model, suffix
from forerun.drafters.lookahead import Lookahead, Options
from forerun.drafters.suffix import Suffix
from forerun.drafting.base import Target
from forerun.drafting.fallback import Fallback
from forerun.drafting.spec import DrafterSpec
from forerun.drafting.union import Union
from forerun.engine.controller import Fixed
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
NOISY = tiny_model(3, sharpness=3.0, noise=0.15)
ANSWERS = {tuple(p): a for p, a in zip(LOOPING, plain(MODEL, LOOPING, GREEDY), strict=True)}


class Counting(Scripted):
    """Counts its proposals, and is silent in the steps that `silent` says."""

    def __init__(self, right: int, silent=lambda step: False):
        super().__init__(ANSWERS, lambda step: right)
        self.silent = silent
        self.asked = 0

    def propose(self, seqs, budgets):
        self.asked += 1
        drafts = super().propose(seqs, budgets)
        is_silent = [self.silent(self.steps[seq.id]) for seq in seqs]
        return [EMPTY_DRAFT if s else d for s, d in zip(is_silent, drafts, strict=True)]


def run(first, second, *, second_s=0.0, rounds=5):
    """Tokens a second where a pass takes 1 s and 0.05 s more for each further row; what was said is checked."""
    clock = Clock()
    if second is not None:
        clock.delay(second, second_s)
    drafter = first if second is None else Fallback(first, second)
    engine = timed_engine(MODEL, drafter, clock, row_s=0.05, draft_s=0.01, controller=True)
    num_tokens = 0
    for _ in range(rounds):
        runs = complete(engine, LOOPING[:1], GREEDY)
        assert [run.seq.generated for run in runs] == [ANSWERS[tuple(LOOPING[0])]]
        num_tokens += GREEDY.max_tokens
    return num_tokens / clock.now


def every_other(step):
    return step % 2 == 0


def always(step):
    return True


def test_the_second_is_not_asked_where_the_first_is_good():
    first, second = Counting(right=4), Counting(right=4)
    run(first, second, second_s=1.0, rounds=20)
    assert second.asked < first.asked / 10


def test_the_second_speaks_where_the_first_is_silent():
    first, second = Counting(4, silent=every_other), Counting(4)
    speed = run(first, second, second_s=0.1, rounds=20)
    assert first.asked / 3 < second.asked < first.asked
    assert speed > 1.3 * run(Counting(4, silent=every_other), None)


def test_the_second_takes_over_where_the_first_is_wrong():
    first, second = Counting(right=0), Counting(right=4)
    run(first, second, second_s=0.1, rounds=10)
    assert second.asked > first.asked / 2


@pytest.mark.parametrize("right", [0, 4])
def test_a_second_that_is_too_expensive_does_not_silence_the_first(right):
    """Asking it takes as long as twelve passes, so that even four right guesses do not pay."""
    alone = run(Counting(4, silent=every_other), None, rounds=100)
    first, second = Counting(4, silent=every_other), Counting(right)
    assert run(first, second, second_s=12.0, rounds=100) > 0.97 * alone
    assert 2 <= second.asked < first.asked / 50


@pytest.mark.parametrize(("num_tokens", "is_asked"), [(40, False), (200, True)])
def test_reading_a_prompt_must_pay_within_the_answer(num_tokens, is_asked):
    """Of every sequence the second's first proposal takes twenty passes, the others next to nothing."""
    clock, params = Clock(), replace(GREEDY, max_tokens=num_tokens)
    answer = plain(MODEL, LOOPING[:1], params)[0]
    second = Scripted({tuple(LOOPING[0]): answer}, lambda step: 1, length=1)
    propose = second.propose

    def reading(seqs, budget):
        clock.now += 0.05 if any(second.steps.values()) else 20.0
        return propose(seqs, budget)

    second.propose = reading
    silent = Scripted({tuple(LOOPING[0]): answer}, lambda step: 0, length=0)
    fallback = Fallback(silent, second)
    engine = timed_engine(MODEL, fallback, clock, row_s=0.05, draft_s=0.01, controller=True)
    shares = []
    for _ in range(20):
        before = engine.stats.drafts
        assert complete(engine, LOOPING[:1], params)[0].seq.generated == answer
        shares.append((engine.stats.drafts - before) / num_tokens)
        second.steps.clear()
    assert (shares[-1] > 0.4) == is_asked
    assert sum(share > 0 for share in shares) >= 1, "it was tried"


def test_one_that_becomes_cheap_is_found_again():
    clock, second = Clock(), Counting(4)
    fallback = Fallback(Counting(0, silent=always), second)
    engine = timed_engine(MODEL, fallback, clock, row_s=0.05, draft_s=0.01, controller=True)
    propose = second.propose
    clock.delay(second, 12.0)
    for _ in range(200):
        complete(engine, LOOPING[:1], GREEDY)
    expensive, second.propose = second.asked, propose
    for _ in range(200):
        complete(engine, LOOPING[:1], GREEDY)
    assert second.asked > expensive + 100


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5))
def test_no_pair_changes_a_token(first, second, every):
    run(Counting(first, silent=lambda step: step % every == 0), Counting(second), rounds=1)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_real_ones_together_say_what_plain_decoding_says(temperature):
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=40)
    target = Target(MODEL, None, max_num_seqs=4, max_len=256)
    fallback = DrafterSpec.of("suffix+lookahead:window=3,ngram=3").build(target)
    assert isinstance(fallback, Fallback)
    assert isinstance(fallback.first, Suffix)
    assert isinstance(fallback.second, Lookahead)
    assert fallback.second.options == Options(window=3, ngram=3)
    engine = engine_for(MODEL, fallback)
    runs = complete(engine, LOOPING, params)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, params)
    assert engine.stats.accepted > 0


def test_a_draft_model_behind_suffix_sees_all_that_was_said_meanwhile():
    options = draft_model.Options(model="itself")
    target = Target(MODEL, None, max_num_seqs=4, max_len=256)
    second = draft_model.DraftModel(MODEL, options, target)
    fallback = Fallback(Counting(4, silent=lambda step: step % 3 > 0), second)
    assert fallback.draws
    engine = engine_for(MODEL, fallback)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())
    assert engine.stats.acceptance_rate == 1  # the same model is never wrong


@pytest.mark.parametrize("first", [False, True])
def test_a_seed_repeats_itself_whatever_the_past_and_the_clock(first):
    """The part that draws is always asked about a seeded request, or never: time must not choose."""
    target = Target(MODEL, None, max_num_seqs=4, max_len=256)
    drawing = draft_model.DraftModel(NOISY, draft_model.Options(model="noisy"), target)
    parts = (drawing, Suffix(suffix.Options())) if first else (Suffix(suffix.Options()), drawing)
    engine = engine_for(MODEL, Fallback(*parts), controller=True)
    ticks = count()
    engine.timers.clock = lambda: next(ticks) ** 2
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=40)
    said = [[r.seq.generated for r in complete(engine, LOOPING, params)] for _ in range(4)]
    assert all(again == said[0] for again in said)
    assert 0 < engine.stats.accepted < engine.stats.drafted


def test_spelling():
    spec = DrafterSpec.of("suffix:num_draft=3+draft-model:model=a+b.gguf,num_draft=2")
    assert spec.name == "suffix+draft_model"
    assert [dict(part.options) for part in spec.parts] == [
        {"num_draft": "3"},
        {"model": "a+b.gguf", "num_draft": "2"},
    ]
    spec = DrafterSpec.of("ngram+lookahead+draft_model", model="x.gguf", num_draft=4)
    assert [(part.name, dict(part.options)) for part in spec.parts] == [
        ("prompt_lookup", {"num_draft": 4}),
        ("lookahead", {}),
        ("draft_model", {"model": "x.gguf", "num_draft": 4}),
    ]
    assert DrafterSpec.of("draft_model:model=a+b.gguf").parts == ()
    with pytest.raises(ConfigError, match="has no option model="):
        DrafterSpec.of("suffix+lookahead", model="x.gguf")
    with pytest.raises(ConfigError, match=r"suffix\+nothing"):
        DrafterSpec.of("suffix+nothing")


def test_what_both_want_to_see_must_be_the_same():
    seeing, other = Counting(1), Counting(1)
    seeing.features = LAST_HIDDEN
    assert Fallback(other, seeing).features == Fallback(seeing, other).features == LAST_HIDDEN
    other.features = Features(layers=(1,))
    with pytest.raises(ConfigError, match="different layers"):
        Fallback(seeing, other)


@pytest.mark.parametrize("combine", [Fallback, Union])
def test_each_gets_as_many_of_the_likeliest_tokens_as_it_asked_for(combine):
    """The target is asked for the most of them, through the guard too."""
    parts = [Scripted(ANSWERS, lambda step: 2, features=Features(top_k=k)) for k in (2, 0, 5)]
    engine = engine_for(MODEL, combine(combine(parts[0], parts[1]), parts[2]), controller=True)
    engine.controller = Fixed(8)
    assert engine.drafter.features.top_k == 5
    complete(engine, LOOPING, GREEDY)
    few, none, many = (part.outcomes for part in parts)
    assert len(few) == len(none) == len(many) > 0
    for two, nothing, five in zip(few, none, many, strict=True):
        assert nothing.top is None
        assert two.top.ids.shape[1] == 2
        assert five.top.ids.shape[1] == 5
        assert (two.top.probs() == five.top.probs()[:, :2]).all()
