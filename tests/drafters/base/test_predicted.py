"""A predicted output is a draft like any other: it changes no token, and is followed where the answer follows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft
from forerun.drafters.base.contract import Drafter
from forerun.drafters.base.predicted import FIRST_LENGTH, MATCH, MAX_LENGTH, PredictedText
from forerun.drafters.suffix import Options, Suffix
from forerun.engine.engine import Engine
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for, plain
from tests.tiny import tiny_model

SAMPLED = SamplingParams(temperature=0.9, seed=4, max_tokens=40)


def engine(model, drafter) -> Engine:
    """An engine whose predictions are written as numbers."""
    made = engine_for(model, drafter)
    made.intake.encode = lambda text: [int(word) for word in text.split()]
    return made


def written(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("drafter", [Drafter, lambda: Suffix(Options())])
def test_no_prediction_changes_a_token(params, drafter):
    model = tiny_model(3, sharpness=3.0)
    runs = []
    for prompt, answer in zip(LOOPING, plain(model, LOOPING, params), strict=True):
        edited = [*answer[:8], 1, 1, 1, *answer[14:]]
        for predicted in (answer, edited, answer[10:], [0] * 20):
            asked = replace(params, prediction=written(predicted))
            (run,) = complete(engine(model, drafter()), [prompt], asked)
            assert run.seq.generated == answer
            runs.append(run.prediction)
    assert runs[0].accepted > 30
    assert runs[0].rejected == 0
    assert runs[1].accepted > 10
    assert sum(run.rejected for run in runs) > 0


def test_a_sequence_that_may_not_draft_does_not():
    model = tiny_model(3, sharpness=3.0)
    (answer,) = plain(model, LOOPING[:1], GREEDY)
    for most in (0, 3):
        asked = replace(GREEDY, prediction=written(answer), max_draft=most)
        made = engine(model, Suffix(Options()))
        (run,) = complete(made, LOOPING[:1], asked)
        assert run.seq.generated == answer
        assert run.stats.drafted <= most * run.stats.passes
        assert bool(run.stats.drafted) == bool(most)


def test_it_is_followed_left_and_found_again():
    tokens = [*range(40)]
    one = PredictedText(tokens)
    assert one.extend(EMPTY_DRAFT, [], 99).tokens == tuple(range(FIRST_LENGTH))
    one.learn(Draft.chain(tokens[:FIRST_LENGTH]), range(FIRST_LENGTH))
    assert len(one.extend(EMPTY_DRAFT, tokens[:9], 99)) == 2 * FIRST_LENGTH
    assert one.extend(EMPTY_DRAFT, [*tokens[:9], 77], 99) is EMPTY_DRAFT
    assert one.extend(EMPTY_DRAFT, [*tokens[:9], 77, 12, 13], 99) is EMPTY_DRAFT
    draft = one.extend(EMPTY_DRAFT, [*tokens[:9], 77, *tokens[12 : 12 + MATCH]], 4)
    assert draft.tokens == tuple(tokens[12 + MATCH :][:4])
    assert (one.accepted, one.rejected) == (FIRST_LENGTH, 0)


def test_of_several_places_the_next_one_is_taken():
    tokens = [1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3, 9]
    one = PredictedText(tokens)
    assert one.extend(EMPTY_DRAFT, [1, 2, 3, 7, 5, 1, 2, 3], 1).tokens == (8,)


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=8),
    st.integers(0, 40),
)
def test_a_draft_is_never_shortened_nor_beyond_its_room(tokens, steps, room):
    one, generated = PredictedText(tokens), list[int]()
    draft = Draft.chain([0, 1, 0])
    for emitted in steps:
        longer = one.extend(draft, generated, room)
        assert longer.trim(len(draft)) == draft
        assert len(longer) <= max(room, len(draft))
        assert len(longer) <= len(draft) + MAX_LENGTH
        one.learn(longer, ())
        generated += emitted
