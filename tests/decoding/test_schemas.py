"""Schemas as libraries write them become ones that llguidance reads, and allow no more."""

from __future__ import annotations

import json

import pytest

from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.schemas import prepared, unreadable

LOOKS = r"^(?!\.)[a-z]+$"
TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT | {"format": "email", "pattern": LOOKS}, TEXT | {"format": "email"}),
        ({"anyOf": [{"type": "number"}, TEXT | {"pattern": LOOKS}]}, {"anyOf": [{"type": "number"}]}),
        ({"anyOf": [{"not": {}}, TEXT]}, {"anyOf": [TEXT]}),
        ({"type": "object", "propertyNames": TEXT, "additionalProperties": {"type": "integer"}},
         {"type": "object", "additionalProperties": {"type": "integer"}}),
        ({"type": "object", "propertyNames": TEXT | {"enum": ["a"]}, "additionalProperties": TEXT},
         {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}),
        ({"type": "object", "propertyNames": {"pattern": "^x"}},
         {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False}),
        ({"properties": {"a": TEXT}, "required": ["a", "b"]},
         {"properties": {"a": TEXT, "b": {}}, "required": ["a", "b"], "additionalProperties": False}),
        ({"properties": {"a": TEXT}, "patternProperties": {"^a$": {"minLength": 2}}},
         {"properties": {"a": {"allOf": [TEXT, {"minLength": 2}]}}}),
        ({"type": "number", "minimum": 0, "maximum": 0.75},
         {"anyOf": [{"type": "number", "minimum": 0, "maximum": 0.75}, {"enum": [0.7]}]}),
        ({"type": "number", "minimum": -1.25}, {"anyOf": [{"type": "number", "minimum": -1.25}, {"enum": [-1.2]}]}),
        ({"type": "number", "minimum": 0.25}, {"type": "number", "minimum": 0.25}),
        (TEXT | {"pattern": LOOKS}, TEXT | {"pattern": LOOKS}),
        (True, True),
    ],
)  # fmt: skip
def test_schemas_become_readable(schema, expected):
    assert prepared(schema) == expected


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": TEXT | {"pattern": LOOKS}}}, "a pattern that looks around"),
        ({"properties": {"a": {"type": "flower"}}}, "type 'flower'"),
        ({"items": {"contains": {}}}, "contains"),
        ({"properties": {"if": TEXT}}, ""),
    ],
)
def test_what_cannot_be_compiled_is_said(schema, why):
    assert unreadable(schema) == why


@pytest.mark.parametrize("odd", [None, 0, True, {}, [None], [1, "a"]])
def test_a_type_that_is_none_is_left_to_the_library(odd: object) -> None:
    assert prepared({"type": odd, "minimum": 0.5})["type"] == odd


@pytest.mark.parametrize(("low", "high"), [(0, 0.75), (-0.75, 0.25), (0.125, 1.13), (-1.25, -0.5)])
def test_decimal_bounds_allow_what_is_within(low, high, default_llm):
    given = {"type": "number", "minimum": low, "maximum": high}
    start = default_llm.grammars.start(StructuredOutputsParams(json=given))
    for value in (step / 20 for step in range(-26, 27)):
        text, state = json.dumps(value if value % 1 else int(value)), start
        for token in default_llm.tokenizer.encode(text, special=False, bos=False):
            state = state.advance(token) if state is not None and state.allows(token) else None
        is_whole = state is not None and any(map(state.allows, state.eos_ids))
        assert is_whole == (low <= value <= high), text


@pytest.fixture(scope="module")
def default_llm(default_model):
    pytest.importorskip("llguidance", reason="structured output needs llguidance")
    from forerun.llm import LLM

    with LLM(str(default_model), drafter="none", max_model_len=256) as llm:
        yield llm
