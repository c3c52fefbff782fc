"""Whatever a field is given: an error of ours that names it, or a value of the field's type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, RequestError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.core.typed import fit

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from(
        [
            *(10**400, 1j, Decimal("NaN"), Fraction(1, 3), object, range(10**12), iter(())),
            *("\ud800", b"", "int8", "none", "auto", "600MiB"),
            *(np.int64(3), np.float32(0.5), np.bool_(True), np.nan, np.arange(3), np.ones((2, 2))),
        ]
    ),
)
ODD = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(-1, 9)), inner, max_size=3),
    ),
    max_leaves=4,
)
CASES = [
    *((SamplingParams, RequestError, field.name) for field in fields(SamplingParams)),
    *((EngineConfig, ConfigError, field.name) for field in fields(EngineConfig)),
]


def holds(value: Any, hint: Any) -> bool:
    """Whether it is of the type already."""
    fitted = fit(value, hint)
    return type(fitted) is type(value) and repr(fitted) == repr(value)


@pytest.mark.parametrize(("cls", "error", "name"), CASES)
@given(value=ODD)
@settings(max_examples=40, deadline=None)
def test_an_odd_value_is_refused_by_name_or_becomes_one_of_the_fields_type(cls, error, name, value):
    try:
        made = cls(**{name: value})
    except error:
        return
    if name != "drafter":  # which may be a drafter: `DrafterSpec.of` checks it
        assert holds(getattr(made, name), get_type_hints(cls)[name])
        assert replace(made) == made


@pytest.mark.parametrize("name", [field.name for field in fields(StructuredOutputsParams)])
@given(value=ODD)
@settings(max_examples=40, deadline=None)
def test_an_odd_value_of_a_form_is_refused_or_text(name, value):
    form = {"json_object": True, name: value} if name == "whitespace_pattern" else {name: value}
    try:
        params = SamplingParams(structured_outputs=form)
    except RequestError:
        return
    assert isinstance(params.structured_outputs.source, str)
    hash(params.structured_outputs)  # as which it is known again


WRONG = [
    (SamplingParams, {"stop": 5}, "stop must be at most 64 strings"),
    (SamplingParams, {"stop_token_ids": 7}, "stop_token_ids must be at most 1024 token ids, got 7"),
    (SamplingParams, {"stop_token_ids": "7"}, "stop_token_ids must be"),
    (SamplingParams, {"logit_bias": [1]}, r"logit_bias must be .*, got \[1\]"),
    (SamplingParams, {"logit_bias": {"a": 1}}, "logit_bias must be .* token ids"),
    (SamplingParams, {"logit_bias": {1.5: 1}}, "logit_bias must be .* token ids"),
    (SamplingParams, {"logit_bias": {1: 10**400}}, "logit_bias must be"),
    (SamplingParams, {"prediction": 7}, "prediction must be text or token ids, got 7"),
    (SamplingParams, {"prediction": [1, 2.5]}, "prediction must be text or token ids"),
    (SamplingParams, {"temperature": 10**400}, "temperature must be from 0 to 100, got 1000"),
    (SamplingParams, {"temperature": -(10**5000)}, "temperature must be .*, got a int"),
    (EngineConfig, {"threads": "2"}, "threads must be a whole number or none, got '2'"),
    (EngineConfig, {"max_num_seqs": True}, "max_num_seqs must be a whole number, got True"),
    (EngineConfig, {"draft_budget": 3.5}, "draft_budget must be a whole number, got 3.5"),
    (EngineConfig, {"controller": 1}, "controller must be true or false, got 1"),
    (EngineConfig, {"model": None}, "model must be text, got None"),
    (EngineConfig, {"draft_options": [1]}, "draft_options must be a mapping of options"),
]


@pytest.mark.parametrize(("cls", "given", "message"), WRONG)
def test_a_wrong_type_is_told_with_what_is_allowed(cls, given: Mapping[str, Any], message) -> None:
    with pytest.raises((RequestError, ConfigError), match=f"^{message}"):
        cls(**given)


def test_lists_and_arrays_of_ids_are_ids():
    for ids in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), range(1, 4)):
        params = SamplingParams(prediction=ids, stop_token_ids=ids, stop=["a"])
        assert params.prediction == params.stop_token_ids == (1, 2, 3)
        assert {*map(type, params.prediction)} == {int}
        assert params.stop == ("a",)
    assert SamplingParams(logit_bias={"5": 1, np.int64(7): 2}).logit_bias == {5: 1, 7: 2}
    assert SamplingParams(ignore_eos=np.bool_(True)).ignore_eos is True
    assert math.isclose(SamplingParams(top_p=np.float64(0.5)).top_p, 0.5)
