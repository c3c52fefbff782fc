"""Perplexity against its definition, token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.lab.eval.perplexity import Score, measure, windows
from forerun.lab.store import Store
from tests.tiny import tiny_model

TEXT = np.random.default_rng(1).integers(0, 24, 83).tolist()


def score(model, tokens, window, stride, journal=None):
    plan = windows(len(tokens), window, stride)
    return sum(measure(model, tokens, plan, journal or Store({})), Score())


@given(st.integers(2, 300), st.integers(2, 40), st.data())
def test_overlapping_windows_predict_every_token_once_from_enough_context(num, window, data):
    stride = data.draw(st.integers(1, window - 1))
    plan = windows(num, window, stride)
    assert [i for part in plan for i in range(part.first, part.stop)] == list(range(1, num))
    for part in plan:
        assert 2 <= part.stop - part.start <= window
        assert part.first - part.start >= (window - stride if part.start else 1)


@given(st.integers(2, 300), st.integers(2, 40))
def test_windows_side_by_side_leave_out_the_first_token_of_each(num, window):
    plan = windows(num, window, window)
    predicted = [i for part in plan for i in range(part.first, part.stop)]
    assert predicted == [i for i in range(num) if i % window]


@pytest.mark.parametrize(("window", "stride"), [(32, 16), (20, 7), (200, 100), (16, 16)])
def test_the_score_is_the_sum_of_what_plain_decoding_thinks_of_each_token(window, stride):
    model = tiny_model(3, sharpness=3.0)
    nll, count = 0.0, 0
    for part in windows(len(TEXT), window, stride):
        for i in range(part.first, part.stop):
            batch = Batch((Segment(0, 0, tuple(TEXT[part.start : i])),))
            logits = model.head(model.forward(batch, model.new_cache(1, 256)).last[-1:])[0]
            nll -= float(log_softmax(logits.astype(np.float64))[TEXT[i]])
            count += 1
    measured = score(model, TEXT, window, stride)
    assert measured.tokens == count
    assert measured.nll == pytest.approx(nll, rel=1e-6)
    assert measured.ppl == pytest.approx(math.exp(nll / count), rel=1e-6)


def test_a_model_without_opinions_has_the_perplexity_of_its_vocabulary():
    assert score(tiny_model(sharpness=0.0), TEXT, 32, 16).ppl == pytest.approx(24)


def test_more_context_is_what_a_smaller_stride_buys():
    plans = [windows(len(TEXT), 32, stride) for stride in (31, 16, 4)]
    least = [min(part.first - part.start for part in plan[1:]) for plan in plans]
    assert least == [1, 16, 28]


def test_an_interrupted_run_goes_on_and_repeats_nothing(tmp_path):
    model, path = tiny_model(3, sharpness=3.0), tmp_path / "run.jsonl"
    whole = score(model, TEXT, 16, 8)
    plan = windows(len(TEXT), 16, 8)
    steps = measure(model, TEXT, plan, Store({"a": 1}, path))
    early = [next(steps) for _ in range(3)]

    class Counting:
        passes = 0
        config, head, new_cache = model.config, model.head, model.new_cache

        def forward(self, *args):
            self.passes += 1
            return model.forward(*args)

    counting = Counting()
    rest = list(measure(counting, TEXT, plan, Store({"a": 1}, path)))
    assert rest[:3] == early
    assert counting.passes == len(plan) - 3
    again = sum(rest, Score())
    assert (again.tokens, again.nll) == (whole.tokens, whole.nll)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((10, 1, 1), "at least 2 tokens, got 1"),
        ((10, 4, 0), "stride must be from 1 to the window's 4, got 0"),
        ((10, 4, 5), "stride must be from 1 to the window's 4, got 5"),
        ((1, 4, 2), "perplexity needs at least 2 tokens, got 1"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        windows(*sizes)


def test_a_window_beyond_the_models_context_is_refused():
    with pytest.raises(ConfigError, match="longer than the model's context of 64"):
        score(tiny_model(max_position=64), TEXT, 80, 40)
