"""The promise that sampling with drafts follows the target's distribution, tested on whole short sequences.

Seeds are fixed, so a test either always passes or always fails; FALSE_ALARM is the chance that a
right verifier had met unlucky seeds when they were chosen.
"""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.params import SamplingParams
from forerun.core.random import Noise
from forerun.core.types import Draft, Seq
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
    "noisy tree": drafting.noisy_tree(NEAR, PLAIN),
    "noisy tree and favourites": drafting.merged(NEAR, PLAIN),
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
    assert sum(NUM * mass >= 5 for mass in exact.values()) >= 25


def test_plain_decoding_follows_the_distribution() -> None:
    check(sample_many(TOY, PLAIN, LENGTH, no_draft, NUM), PLAIN)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_draft_follows_the_distribution(shape: str) -> None:
    sample = sample_many(TOY, PLAIN, LENGTH, SHAPES[shape], NUM)
    assert sample.accepted > NUM / 4
    assert sample.rejected > NUM / 4
    check(sample, PLAIN)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("shape", ["point tree", "noisy tree"])
def test_every_sampling_parameter_follows_the_distribution(name: str, shape: str) -> None:
    sample = sample_many(TOY, PARAMS[name], LENGTH, SHAPES[shape], NUM)
    assert sample.accepted > 0
    assert sample.rejected > 0
    check(sample, PARAMS[name])


def test_a_guess_that_sees_the_noise_is_right_more_often() -> None:
    blind, seeing = (
        sample_many(TOY, PLAIN, 8, SHAPES[shape], 200) for shape in ("point tree", "noisy tree")
    )
    assert seeing.accepted / seeing.drafted > 1.15 * blind.accepted / blind.drafted


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_takes_the_likeliest_tokens_whatever_the_draft(shape: str) -> None:
    params = SamplingParams(temperature=0, repetition_penalty=1.3, logit_bias={1: 0.4})
    (expected,) = exact_distribution(TOY, params, 8)
    sample = sample_many(TOY, params, 8, SHAPES[shape], 10)
    assert set(sample.counts) == {expected}
    assert sample.accepted > 0


@pytest.mark.parametrize("name", PARAMS)
def test_a_seed_gives_the_same_tokens_for_every_draft(name: str) -> None:
    params = PARAMS[name]
    for seed in range(20):
        plain = generate(TOY, params, 6, no_draft, seed)
        for shape in SHAPES:
            assert generate(TOY, params, 6, SHAPES[shape], seed) == plain


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_draft_follows_the_distribution_closely(shape: str) -> None:
    check(sample_many(TOY, PLAIN, 4, SHAPES[shape], 20_000), PLAIN, length=4)


# --------------------------------------------------------------------------------------------------
# The tests above have teeth: a verifier that is wrong in any of these ways is caught.
# --------------------------------------------------------------------------------------------------


def test_noise_that_looks_at_the_draft_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a draft may change the noise, the law is broken, and so is the promise of a seed."""
    guessed, honest = [0], Noise.draw

    def draft(seq: Seq) -> Draft:
        drafted = SHAPES["point tree"](seq)
        guessed[0] = drafted.tokens[0]
        return drafted

    def favouring(self: Noise, position: int, logits: np.ndarray, factor: float) -> int:
        raised = logits.copy()
        raised[guessed[0]] += 1
        return honest(self, position, raised, factor)

    plain = [generate(TOY, PLAIN, 6, no_draft, seed) for seed in range(20)]
    monkeypatch.setattr(Noise, "draw", favouring)
    sample = sample_many(TOY, PLAIN, LENGTH, draft, NUM)
    assert p_value(sample.counts, exact_distribution(TOY, PLAIN, LENGTH)) < FALSE_ALARM
    assert [generate(TOY, PLAIN, 6, draft, seed) for seed in range(20)] != plain


def test_a_target_row_that_is_not_processed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    params = PARAMS["cold"]
    choose = LogitsPipeline.choose

    def choose_raw(self: LogitsPipeline, *args: object) -> int:
        return choose(LogitsPipeline(PLAIN, PROMPT, noise=self.noise), *args)

    monkeypatch.setattr(LogitsPipeline, "choose", choose_raw)
    sample = sample_many(TOY, params, LENGTH, SHAPES["point tree"], NUM)
    assert p_value(sample.counts, exact_distribution(TOY, params, LENGTH)) < FALSE_ALARM


def test_logits_of_the_wrong_node_are_caught() -> None:
    class Shifted(Toy):
        def node_logits(self, *args: object) -> object:
            return np.roll(super().node_logits(*args), 1, axis=0)

    sample = sample_many(Shifted(), PLAIN, LENGTH, SHAPES["point tree"], NUM)
    assert p_value(sample.counts, exact_distribution(TOY, PLAIN, LENGTH)) < FALSE_ALARM
