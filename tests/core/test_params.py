"""What a request may ask for."""

import math

import pytest

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams

BAD = [
    ("n", 0),
    ("n", 10**9),
    ("n", 1.5),
    ("n", True),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 100.1),
    ("temperature", "hot"),
    ("top_k", -2),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("min_p", -0.1),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", 3),
    ("frequency_penalty", math.nan),
    ("logit_bias", {5: 101}),
    ("logit_bias", {-1: 0}),
    ("seed", -2),
    ("seed", 2**63),
    ("seed", 1.5),
    ("seed", True),
    ("seed", "7"),
    ("stop", ("",)),
    ("stop", tuple("abc" * 100)),
    ("stop_token_ids", (-1,)),
    ("max_tokens", -2),
    ("min_tokens", -1),
    ("logprobs", -2),
    ("allowed_token_ids", ()),
    ("allowed_token_ids", (-1,)),
    ("bad_words", ("red", " ")),
    ("logits_processors", ("no function",)),
    ("output_kind", "SOMETIMES"),
    ("logprobs", 10**6),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_value_out_of_range_is_named_with_what_is_allowed(name, value):
    with pytest.raises(RequestError, match=rf"{name} must be .*, got"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["detokenize", "skip_special_tokens", "ignore_eos"])
def test_a_switch_is_true_or_false(name):
    with pytest.raises(RequestError, match=f"{name} must be true or false, got 1"):
        SamplingParams(**{name: 1})


def test_what_is_none_in_vllm_is_nothing_here():
    empty = {"stop": None, "stop_token_ids": None, "logit_bias": None}
    assert SamplingParams(**empty) == SamplingParams()
    assert SamplingParams(logprobs=True).logprobs == 1
    assert SamplingParams().max_tokens == 16


def test_defaults_are_fine_and_a_single_stop_string_is_a_list_of_one():
    assert SamplingParams().stop == ()
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(temperature=0).is_greedy
