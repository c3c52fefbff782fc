"""The promise that sampling with drafts follows the target's distribution, tested on whole short sequences.

Seeds are fixed, so a test either always passes or always fails; FALSE_ALARM is the chance that a
right verifier had met unlucky seeds when they were chosen.
"""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.params import SamplingParams
from forerun.decoding import verify as verify_module
from forerun.decoding.processors import LogitsPipeline
from tests.decoding import drafting
from tests.decoding.toy import (
    FALSE_ALARM,
    PROMPT,
    Drafting,
    Sample,
    Toy,
    exact_distribution,
    generate,
    no_draft,
    p_value,
    sample_many,
)

TOY = Toy()
LENGTH = 3
NUM = 800
PLAIN = SamplingParams()
TOP_TWO = SamplingParams(top_k=2)

NEAR = drafting.near(TOY)
SHAPES: dict[str, Drafting] = {
    "point chain": drafting.point_chain(NEAR),
    "point tree": drafting.point_tree(NEAR),
    "drawn chain": drafting.drawn_tree(NEAR, (1, 1, 1), replace=True),
    "independent children": drafting.drawn_tree(NEAR, (3, 1), replace=True),
    "children without replacement": drafting.drawn_tree(NEAR, (2, 1), replace=False),
    "all tokens without replacement": drafting.drawn_tree(NEAR, (4,), replace=False),
    "chosen and drawn children": drafting.mixed(NEAR),
    "a chosen tree merged into a drawn one": drafting.merged(NEAR),
}
PARAMS = {
    "cold": SamplingParams(temperature=0.3),
    "hot": SamplingParams(temperature=1.7),
    "top-k": SamplingParams(top_k=2),
    "top-p": SamplingParams(top_p=0.7),
    "min-p": SamplingParams(min_p=0.3),
    "penalties": SamplingParams(
        repetition_penalty=1.8, presence_penalty=0.6, frequency_penalty=0.9
    ),
    "bias": SamplingParams(logit_bias={0: 1.5, 2: -100}),
    "min tokens": SamplingParams(min_tokens=2, stop_token_ids=(3,)),
    "all at once": SamplingParams(
        temperature=1.4, top_k=3, top_p=0.95, min_p=0.05, frequency_penalty=-0.8, logit_bias={1: 1}
    ),
}


def check(sample: Sample, params: SamplingParams, length: int = LENGTH) -> None:
    assert p_value(sample.counts, exact_distribution(TOY, params, length)) > FALSE_ALARM


def test_the_toy_spreads_over_many_sequences() -> None:
    exact = exact_distribution(TOY, PLAIN, LENGTH)
    assert sum(exact.values()) == pytest.approx(1)
    assert sum(NUM * mass >= 5 for mass in exact.values()) > 25


def test_plain_decoding_follows_the_distribution() -> None:
    check(sample_many(TOY, PLAIN, LENGTH, no_draft, NUM), PLAIN)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_draft_follows_the_distribution(shape: str) -> None:
    sample = sample_many(TOY, PLAIN, LENGTH, SHAPES[shape], NUM)
    assert sample.accepted > NUM / 4
    assert sample.rejected > NUM / 4
    check(sample, PLAIN)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("shape", ["point tree", "children without replacement"])
def test_every_sampling_parameter_follows_the_distribution(name: str, shape: str) -> None:
    sample = sample_many(TOY, PARAMS[name], LENGTH, SHAPES[shape], NUM)
    assert sample.accepted > 0
    assert sample.rejected > 0
    check(sample, PARAMS[name])


@pytest.mark.parametrize("rows", [drafting.with_zeros(TOY), drafting.one_hot(TOY)])
@pytest.mark.parametrize("widths", [(1, 1), (2,)])
def test_drafts_that_miss_tokens_follow_the_distribution(
    rows: drafting.Rows, widths: tuple[int, ...]
) -> None:
    draft = drafting.drawn_tree(rows, widths, replace=False)
    sample = sample_many(TOY, PLAIN, LENGTH, draft, NUM)
    assert sample.accepted > 0
    assert sample.rejected > 0
    check(sample, PLAIN)


def test_a_draft_of_impossible_tokens_is_rejected_and_follows_the_distribution() -> None:
    draft = drafting.drawn_tree(drafting.disjoint(TOY, TOP_TWO), (2,), replace=False)
    sample = sample_many(TOY, TOP_TWO, LENGTH, draft, NUM)
    assert sample.drafted > 0
    assert sample.accepted == 0
    check(sample, TOP_TWO)


@pytest.mark.parametrize("params", [PLAIN, TOP_TWO, SamplingParams(temperature=0.3)])
def test_a_draft_equal_to_the_target_is_accepted_and_follows_the_distribution(
    params: SamplingParams,
) -> None:
    draft = drafting.drawn_tree(drafting.equal(TOY, params), (1, 1), replace=True)
    sample = sample_many(TOY, params, LENGTH, draft, NUM)
    assert sample.drafted > 0
    assert sample.rejected == 0
    check(sample, params)


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_takes_the_likeliest_tokens_whatever_the_draft(shape: str) -> None:
    params = SamplingParams(temperature=0, repetition_penalty=1.3, logit_bias={1: 0.4})
    (expected,) = exact_distribution(TOY, params, 8)
    sample = sample_many(TOY, params, 8, SHAPES[shape], 10)
    assert set(sample.counts) == {expected}
    assert sample.accepted > 0


@pytest.mark.parametrize("name", PARAMS)
def test_with_chosen_guesses_a_seed_gives_the_same_tokens_for_every_draft(name: str) -> None:
    params = PARAMS[name]
    for seed in range(20):
        plain = generate(TOY, params, 6, no_draft, seed)
        for shape in ("point chain", "point tree"):
            assert generate(TOY, params, 6, SHAPES[shape], seed) == plain


def test_a_seed_repeats_itself_with_drawn_guesses() -> None:
    draft = SHAPES["children without replacement"]
    runs = [sample_many(TOY, PLAIN, 5, draft, 30).counts for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_draft_follows_the_distribution_closely(shape: str) -> None:
    check(sample_many(TOY, PLAIN, 4, SHAPES[shape], 20_000), PLAIN, length=4)


# --------------------------------------------------------------------------------------------------
# The tests above have teeth: a verifier that is wrong in any of these ways is caught.
# --------------------------------------------------------------------------------------------------


def accept_everything(*_: object) -> bool:
    return True


def accept_as_the_target_alone(token: int, u: float, target: np.ndarray, _: np.ndarray) -> bool:
    return bool(u < target[token])


def subtract_nothing(target: np.ndarray, _: np.ndarray) -> np.ndarray:
    return target


def subtract_without_clipping(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    rest = np.abs(target - draft)
    return rest / rest.sum()


BROKEN = [
    ("_is_accepted", accept_everything),
    ("_is_accepted", accept_as_the_target_alone),
    ("_subtract", subtract_nothing),
    ("_subtract", subtract_without_clipping),
]


@pytest.mark.parametrize(("name", "wrong"), BROKEN)
@pytest.mark.parametrize("shape", ["drawn chain", "children without replacement"])
def test_a_wrong_rule_for_drawn_guesses_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: object, shape: str
) -> None:
    monkeypatch.setattr(verify_module, name, wrong)
    sample = sample_many(TOY, PLAIN, LENGTH, SHAPES[shape], NUM)
    assert p_value(sample.counts, exact_distribution(TOY, PLAIN, LENGTH)) < FALSE_ALARM


def test_a_target_row_that_is_not_processed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    params = PARAMS["cold"]
    choose = LogitsPipeline.choose

    def choose_raw(self: LogitsPipeline, *args: object) -> int:
        return choose(LogitsPipeline(PLAIN, PROMPT, seed=self.seed), *args)

    monkeypatch.setattr(LogitsPipeline, "choose", choose_raw)
    sample = sample_many(TOY, params, LENGTH, SHAPES["point tree"], NUM)
    assert p_value(sample.counts, exact_distribution(TOY, params, LENGTH)) < FALSE_ALARM


def test_logits_of_the_wrong_node_are_caught() -> None:
    class Shifted(Toy):
        def node_logits(self, *args: object) -> object:
            return super().node_logits(*args).roll(1, dims=0)

    sample = sample_many(Shifted(), PLAIN, LENGTH, SHAPES["point tree"], NUM)
    assert p_value(sample.counts, exact_distribution(TOY, PLAIN, LENGTH)) < FALSE_ALARM
