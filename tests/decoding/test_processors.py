from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import transformers
from hypothesis import example, given
from hypothesis import strategies as st

from forerun.core.arrays import Floats
from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.random import Noise
from forerun.decoding.processors import LogitsPipeline, kept_in_order, logprobs
from tests.decoding.toy import adjusted, oracle_probs

PROMPT, GENERATED, EOS = (1, 4, 4), (0, 4, 2, 4), frozenset({3})
NONE: tuple[int, ...] = ()


def pipeline(params: SamplingParams, seed: int = 0) -> LogitsPipeline:
    return LogitsPipeline(params, PROMPT, noise=Noise(seed), eos_ids=EOS)


def probs(logits: Floats, params: SamplingParams) -> Floats:
    return pipeline(params).probs(logits, GENERATED)


def first_probs(logits: Floats, params: SamplingParams) -> Floats:
    """At the start of an empty prompt."""
    return LogitsPipeline(params).probs(logits, NONE)


def floats(row: list[float]) -> Floats:
    return np.array(row, np.float32)


def random_logits(size: int, seed: int = 0) -> Floats:
    return 3 * np.random.default_rng(seed).standard_normal(size, np.float32)


# Halves make ties common and keep every comparison exact in both precisions; the odd thresholds
# keep sums away from the borders.
halves = st.lists(st.integers(-8, 8).map(lambda i: i / 2), min_size=6, max_size=9)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-30, 0.3, 1, 1.7, 100]),
    top_k=st.sampled_from([-1, 0, 1, 2, 4, 50]),
    top_p=st.sampled_from([0.1371, 0.6137, 0.9173, 1]),
    min_p=st.sampled_from([0, 0.0713, 0.531, 1]),
    repetition_penalty=st.sampled_from([0.5, 1, 2]),
    presence_penalty=st.sampled_from([-0.5, 0, 1.5]),
    frequency_penalty=st.sampled_from([-0.5, 0, 1]),
    logit_bias=st.dictionaries(st.integers(0, 5), st.sampled_from([-100, -1, 2, 50]), max_size=2),
    stop_token_ids=st.sampled_from([(), (0, 5)]),
    min_tokens=st.sampled_from([0, 4, 5]),
    ignore_eos=st.booleans(),
)


@given(halves, params)
@example([0.0] * 6, SamplingParams(temperature=0.3, repetition_penalty=2, logit_bias={0: 50}))
@example([0.0] * 6, SamplingParams(temperature=100, logit_bias={0: -100, 5: 50}))
@example([0.0] * 6, SamplingParams(temperature=100, top_k=6, logit_bias={0: -100, 5: 50}))
def test_probs_equal_the_oracle(logits: list[float], params: SamplingParams) -> None:
    row = probs(floats(logits), params)
    expected = oracle_probs(logits, params, PROMPT, GENERATED, EOS)
    assert row.dtype == np.float32
    assert row.tolist() == pytest.approx(expected, abs=1e-6)
    for p, wanted in zip(row.tolist(), expected, strict=True):
        if not 0 < wanted < 1e-30:  # fp32 may round such a probability to zero, or not
            assert (p > 0) == (wanted > 0)


@given(halves, params, st.integers(0, 1000))
def test_choose_takes_the_largest_score_of_the_tokens_that_are_left(
    logits: list[float], params: SamplingParams, seed: int
) -> None:
    row, made = floats(logits), pipeline(params, seed)
    law = made.probs(row, GENERATED)
    allowed = np.flatnonzero(law)
    scores = made.adjusted(row, GENERATED)[allowed] * np.float32(made.factor)
    if not params.is_greedy:
        scores = scores + Noise(seed).of(len(PROMPT) + len(GENERATED), allowed)
    assert made.choose(row, GENERATED) == allowed[scores.argmax()]


@given(halves, params)
def test_greedy_takes_the_first_of_the_largest_adjusted_logits(
    logits: list[float], params: SamplingParams
) -> None:
    greedy = SamplingParams(
        temperature=0,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=params.logit_bias,
        min_tokens=params.min_tokens,
    )
    x = adjusted(logits, greedy, PROMPT, GENERATED, EOS)
    chosen = pipeline(greedy).choose(floats(logits), GENERATED)
    assert chosen == x.index(max(x))


HF: dict[str, tuple[SamplingParams, Callable[[], transformers.LogitsProcessor]]] = {
    "temperature": (
        SamplingParams(temperature=0.6),
        lambda: transformers.TemperatureLogitsWarper(0.6),
    ),
    "top-k": (SamplingParams(top_k=7), lambda: transformers.TopKLogitsWarper(7)),
    "top-p": (SamplingParams(top_p=0.83), lambda: transformers.TopPLogitsWarper(0.83)),
    "min-p": (SamplingParams(min_p=0.07), lambda: transformers.MinPLogitsWarper(0.07)),
    "repetition": (
        SamplingParams(repetition_penalty=1.4),
        lambda: transformers.RepetitionPenaltyLogitsProcessor(1.4),
    ),
    "bias": (
        SamplingParams(logit_bias={3: 2.5, 11: -4}),
        lambda: transformers.SequenceBiasLogitsProcessor({(3,): 2.5, (11,): -4.0}),
    ),
    "min tokens": (
        SamplingParams(min_tokens=5),
        lambda: transformers.MinNewTokensLengthLogitsProcessor(len(PROMPT), 5, [*EOS]),
    ),
}


@pytest.mark.parametrize("name", HF)
@pytest.mark.parametrize("size", [16, 3000])
def test_each_processor_equals_the_one_of_transformers(name: str, size: int) -> None:
    params, build = HF[name]
    processor = build()
    history = torch.tensor([[*PROMPT, *GENERATED]])
    for seed in range(5):
        logits = random_logits(size, seed)
        expected = processor(history, torch.tensor(logits)[None])[0].softmax(0).numpy()
        row = probs(logits, params)
        np.testing.assert_allclose(row, expected, atol=1e-6, rtol=1e-5)
        assert ((row > 0) == (expected > 0)).all()


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    logits = random_logits(6)
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    expected = np.exp(logits - floats([0.75, 0, 0.75, 0, 1.0, 0]))
    np.testing.assert_allclose(probs(logits, params), expected / expected.sum(), rtol=1e-5)


def test_a_row_does_not_depend_on_what_was_asked_before() -> None:
    logits = random_logits(6)
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=1, logit_bias={2: 1})
    asked = pipeline(params)
    for generated in ((0,), GENERATED, (), (5, 5)):
        row = asked.probs(logits, generated)
        assert np.array_equal(row, pipeline(params).probs(logits, generated))


@pytest.mark.parametrize(
    "params",
    [SamplingParams(top_k=2), SamplingParams(top_p=0.45), SamplingParams(top_k=3, top_p=0.6)],
)
def test_equals_at_a_border_stay_by_lower_id(params: SamplingParams) -> None:
    row = first_probs(np.zeros(4, np.float32), params)
    assert row.tolist() == [0.5, 0.5, 0, 0]


def test_the_nucleus_is_found_among_many_and_among_few() -> None:
    for spread in (0.01, 1, 10):
        logits = random_logits(5000, 1) * spread
        params = SamplingParams(top_p=0.91, min_p=1e-4)
        expected = oracle_probs(logits.tolist(), params, NONE, NONE)
        row = first_probs(logits, params)
        assert abs(int((row > 0).sum()) - sum(p > 0 for p in expected)) <= 1  # fp32 at the border
        np.testing.assert_allclose(row, expected, atol=1e-5, rtol=1e-3)


def test_end_tokens_stay_banned_until_min_tokens() -> None:
    params = SamplingParams(min_tokens=1, stop_token_ids=(2,), logit_bias={2: 100})
    built = LogitsPipeline(params, eos_ids=EOS)
    assert built.probs(np.zeros(4, np.float32), ()).tolist() == [0.5, 0.5, 0, 0]
    assert built.probs(np.zeros(4, np.float32), (0,)).argmax() == 2


@given(halves, params)
def test_adjusted_logits_are_the_oracles(logits: list[float], params: SamplingParams) -> None:
    row = pipeline(params).adjusted(floats(logits), GENERATED)
    assert row.tolist() == pytest.approx(adjusted(logits, params, PROMPT, GENERATED, EOS))


def test_only_a_greedy_request_that_changes_no_logits_needs_the_argmax_alone() -> None:
    greedy = SamplingParams(temperature=0)
    assert pipeline(greedy).needs_only_argmax
    assert not pipeline(SamplingParams()).needs_only_argmax
    for changed in ({"logit_bias": {1: 1}}, {"min_tokens": 1}, {"presence_penalty": 1}):
        assert not pipeline(SamplingParams(temperature=0, **changed)).needs_only_argmax


def test_ids_beyond_the_row_are_left_out() -> None:
    params = SamplingParams(
        repetition_penalty=2, logit_bias={9: 5}, min_tokens=9, stop_token_ids=(8,)
    )
    row = LogitsPipeline(params, [7], eos_ids=frozenset({5})).probs(np.zeros(4, np.float32), [6])
    assert row.tolist() == [0.25] * 4


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature: float) -> None:
    logits = random_logits(100)
    row = first_probs(logits, SamplingParams(temperature=temperature))
    assert row.argmax() == logits.argmax()
    assert row.max() == 1
    made = LogitsPipeline(SamplingParams(temperature=temperature), noise=Noise(3))
    assert made.choose(logits, NONE) == logits.argmax()


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize(
    "filters",
    [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1, "top_p": 1e-9, "min_p": 1}],
)
def test_the_narrowest_filters_leave_the_likeliest_token(filters, temperature: float) -> None:
    logits = random_logits(100)
    params = SamplingParams(temperature=temperature, **filters)
    for seed in range(5):
        assert LogitsPipeline(params, noise=Noise(seed)).choose(logits, NONE) == logits.argmax()


def test_at_the_highest_temperature_tokens_are_about_equally_likely() -> None:
    """Of 64 tokens drawn 3,200 times, 3 % of the chances apart: chi-square of 63 degrees, 5 standard deviations."""
    made = LogitsPipeline(SamplingParams(temperature=100), noise=Noise(5))
    logits = random_logits(64)
    counts = np.bincount([made.choose(logits, [0] * i) for i in range(3200)], minlength=64)
    assert ((counts - 50) ** 2 / 50).sum() < 63 + 5 * math.sqrt(2 * 63)


def test_the_logits_are_not_changed() -> None:
    logits = random_logits(6)
    before = logits.copy()
    params = SamplingParams(temperature=0.5, top_k=2, repetition_penalty=2, logit_bias={0: 1})
    probs(logits, params)
    assert np.array_equal(logits, before)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = np.stack([random_logits(49153, seed) for seed in range(3)])
    params = SamplingParams(temperature=0.8, top_p=0.9, min_p=1e-6)
    assert np.array_equal(first_probs(rows[1], params), first_probs(rows[1].copy(), params))


@pytest.mark.parametrize("own", [{}, {"top_p": 0.9}, {"temperature": 0}])
@pytest.mark.parametrize("row", [[-math.inf, -math.inf], [math.nan, 1.0], [1.0, math.nan]])
def test_a_row_without_mass_is_refused(row: list[float], own: dict[str, float]) -> None:
    with np.errstate(invalid="ignore"), pytest.raises(RequestError, match="no token can be chosen"):
        LogitsPipeline(SamplingParams(**own)).choose(floats(row), NONE)


@given(halves, st.integers(0, 5), st.integers(0, 12))
def test_logprobs_are_of_the_raw_logits(logits: list[float], token: int, num_top: int) -> None:
    result = logprobs(floats(logits), token, num_top)
    expected = [x - math.log(sum(map(math.exp, logits))) for x in logits]
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert result.token_id == token
    assert result.logprob == pytest.approx(expected[token], abs=1e-5)
    assert ranked[result.rank - 1] == token
    assert [i for i, _ in result.top] == ranked[:num_top]
    assert [p for _, p in result.top] == pytest.approx([expected[i] for i in ranked][:num_top])


@pytest.mark.parametrize("seed", range(40))
def test_samplers_in_any_order_are_those_one_after_the_other(seed):
    """The fast way, by one ranking, is that of the plain one, which sorts once a sampler."""
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(200) * 3).astype(np.float32)
    values = {
        "temperature": float(rng.choice([0.5, 1.0, 2.5])),
        "top_k": int(rng.choice([0, 7, 40])),
        "top_p": float(rng.choice([1.0, 0.9, 0.5])),
        "min_p": float(rng.choice([0.0, 0.05, 0.2])),
    }
    for order in itertools.permutations(("temperature", "top_k", "top_p", "min_p")):
        params = SamplingParams(**values, samplers=order)
        pipeline = LogitsPipeline(params)
        law = pipeline.probs(row, [])
        expected = kept_in_order(row, params, pipeline.factor)
        assert np.flatnonzero(law).tolist() == expected.tolist()
        ratio = np.log(law[expected] / law[expected].max())
        scaled = (row[expected] - row[expected].max()) / params.temperature
        assert np.allclose(ratio, scaled, atol=1e-4)


def test_samplers_that_are_not_named_are_off():
    params = SamplingParams(temperature=3.0, top_k=5, min_p=0.3, samplers=("min_p", "temperature"))
    assert (params.top_k, params.min_p, params.temperature) == (0, 0.3, 3.0)
    params = SamplingParams(temperature=0, top_k=5, presence_penalty=1.0, samplers=())
    assert (params.is_greedy, params.top_k, params.presence_penalty) == (True, 0, 0.0)
    with pytest.raises(RequestError, match="samplers must be an order of"):
        SamplingParams(samplers=("top_k", "typical"))
