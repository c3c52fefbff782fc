"""The sampler's noise: a pure function of its place, exactly distributed, and equal on every instruction set."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from forerun.core.errors import RequestError
from forerun.core.params import MAX_SEED
from forerun.core.random import Noise, gumbel
from forerun.system import device

SEEDS = st.integers(0, MAX_SEED)
KEYS = st.integers(0, 2**64 - 1)
TOKENS = np.arange(4000)
STANDARD = stats.gumbel_r


def bits_of(key: int, token: int) -> int:
    """The hash of a token, in whole numbers of Python."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
        x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
        return x ^ (x >> 16)

    first = mix((token * 0x9E3779B9 + key) % 2**32)
    return mix((first + (key >> 32)) % 2**32)


def oracle(bits: int) -> float:
    """-log(-log u) in double precision, which has the digits of u near 0 and near 1."""
    v = (bits % 2**31 + 0.5) / 2**32
    return -math.log(-math.log1p(-v) if bits < 2**31 else -math.log(v))


@given(KEYS, st.integers(0, 2**31 - 1))
@example(0, 0)
@example(2**64 - 1, 2**31 - 1)
def test_the_noise_is_that_of_double_precision(key, token):
    noise = gumbel(key, np.array([token]))[0]
    assert noise == pytest.approx(oracle(bits_of(key, token)), abs=4e-6)


@pytest.mark.parametrize("bits", [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])
def test_the_ends_of_both_halves_are_finite_and_right(bits):
    """The hash is one to one, so some token of the key 0 has these bits: found by inverting it."""

    def unmix(x: int) -> int:
        x ^= x >> 16
        x = x * pow(0xC2B2AE35, -1, 2**32) % 2**32
        x ^= x >> 13 ^ x >> 26
        x = x * pow(0x85EBCA6B, -1, 2**32) % 2**32
        return x ^ x >> 16

    token = unmix(unmix(bits)) * pow(0x9E3779B9, -1, 2**32) % 2**32
    assert bits_of(0, token) == bits
    assert gumbel(0, np.array([token]))[0] == pytest.approx(oracle(bits), abs=4e-6)


@given(SEEDS, st.integers(0, 2**40), st.integers(0, 100))
def test_a_place_has_one_noise_whoever_asks(seed, position, stream):
    first, again = Noise(seed, stream), Noise(seed, stream)
    several = first.of(position, np.array([3, 99, 7]))
    assert (again.of(position, np.array([7])) == several[2:]).all()


def test_every_coordinate_matters():
    draws = {
        Noise(seed, stream).key(position)
        for seed in range(4)
        for stream in range(4)
        for position in range(8)
    }
    assert len(draws) == 4 * 4 * 8


def test_noise_along_tokens_positions_seeds_and_streams_is_gumbel():
    """Kolmogorov-Smirnov and correlation on four walks; false alarm rate 1e-6 each, the seed is fixed."""
    token = np.array([11])
    walks = (
        gumbel(Noise(7).key(3), TOKENS),
        np.concatenate([Noise(7).of(p, token) for p in range(4000)]),
        np.concatenate([Noise(s).of(3, token) for s in range(4000)]),
        np.concatenate([Noise(7, i).of(3, token) for i in range(4000)]),
    )
    for walk in walks:
        assert stats.kstest(walk, STANDARD.cdf).pvalue > 1e-6
        assert abs(np.corrcoef(walk[:-1], walk[1:])[0, 1]) < 0.1


def test_a_draw_follows_the_softmax():
    logits = (np.random.default_rng(1).normal(size=40) * 2).astype(np.float32)
    probs = np.exp(logits / 0.8) / np.exp(logits / 0.8).sum()
    drawn = [Noise(seed).draw(5, logits, 1 / 0.8) for seed in range(20_000)]
    counts = np.bincount(drawn, minlength=40)
    likely = probs * 20_000 >= 5
    expected = [*(probs[likely] * 20_000), probs[~likely].sum() * 20_000]
    observed = [*counts[likely], counts[~likely].sum()]
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-6


@given(SEEDS, st.data())
def test_a_draw_is_the_largest_score_and_the_lowest_of_equal_ones(seed, data):
    size = data.draw(st.integers(1, 90))
    numbers = st.sampled_from([-math.inf, -3.0, 0.0, 1.5, 30.0, 3e38])
    logits = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float32)
    factor = data.draw(st.sampled_from([1.0, 1 / 0.7, 1e-9, 1e5]))
    noise = Noise(seed)
    with np.errstate(over="ignore"):
        scores = logits * np.float32(factor) + gumbel(noise.key(9), np.arange(size))
    if not -np.inf < scores.max() < np.inf:
        with pytest.raises(RequestError, match="no token can be chosen"):
            noise.draw(9, logits, factor)
        return
    assert noise.draw(9, logits, factor) == scores.argmax()


@pytest.mark.skipif(device.native_problem() is not None, reason="no native kernels")
@given(SEEDS, st.integers(1, 9), st.booleans(), st.data())
def test_the_largest_scores_come_in_order_and_without_what_is_banned(seed, k, has_ids, data):
    from forerun import _native

    size = data.draw(st.integers(1, 70))
    numbers = st.sampled_from([-math.inf, -3.0, 0.0, 1.5, 2.0**30])
    logits = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float32)
    tokens = np.arange(size, dtype=np.int32)
    ids = 7 * tokens + 3 if has_ids else None
    scores = logits * np.float32(0.7) + Noise(seed).of(4, tokens if ids is None else ids)
    ranked = sorted(np.flatnonzero(scores > -np.inf).tolist(), key=lambda i: (-scores[i], i))
    assert _native.largest_scores(logits, ids, 0.7, Noise(seed).key(4), k) == ranked[:k]


@pytest.mark.parametrize("position", [0, 700, 1023, 1024, 1499])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(position, wrong):
    logits = np.zeros(1500, np.float32)
    logits[position] = wrong
    with pytest.raises(RequestError, match="not finite"):
        Noise(1).draw(0, logits, 1.0)


def test_equal_scores_are_common_enough_that_ties_must_be_right():
    """Large logits leave the noise no digits: the lowest id among equals is drawn."""
    logits = np.full(300, 2**30, np.float32)
    assert Noise(4).draw(0, logits, 1.0) == 0


@pytest.mark.skipif(device.native_problem() is not None, reason="no native kernels")
def test_every_instruction_set_gives_the_bits_of_the_reference():
    from forerun import _native

    tokens = np.arange(49_155, dtype=np.int32)
    logits = (np.random.default_rng(0).normal(size=len(tokens)) * 3).astype(np.float32)
    for isa in _native.runnable_isas():
        for key in (0, Noise(1).key(2), 2**64 - 1):
            expected, noise = gumbel(key, tokens), np.empty(len(tokens), np.float32)
            _native.gumbel(key, tokens, noise, isa)
            assert (expected.view(np.int32) == noise.view(np.int32)).all()
            scores = logits * np.float32(0.3) + expected
            assert _native.draw(logits, 0.3, key, isa) == scores.argmax()
            best = np.argsort(-scores, kind="stable")[:20].tolist()
            assert _native.largest_scores(logits, None, 0.3, key, 20, isa) == best
            assert _native.largest_scores(logits, tokens, 0.3, key, 20, isa) == best


def test_without_native_kernels_a_draw_is_the_same(monkeypatch):
    logits = (np.random.default_rng(2).normal(size=5000) * 3).astype(np.float32)
    native = [Noise(seed).draw(0, logits, 1.0) for seed in range(50)]
    noise = Noise(3).of(7, TOKENS)
    monkeypatch.setattr("forerun.core.random.native_problem", lambda: "none here")
    assert [Noise(seed).draw(0, logits, 1.0) for seed in range(50)] == native
    assert (Noise(3).of(7, TOKENS) == noise).all()
