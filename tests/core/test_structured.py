"""The form of an answer is one of five, and what is wrong is said before anything is compiled."""

from __future__ import annotations

import pytest

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams, closed, depth


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"json": {}, "regex": "a"},
        {"choice": []},
        {"choice": "yes"},
        {"choice": ["yes", 1]},
        {"regex": 1},
        {"json": [1]},
        {"json_object": "yes"},
        {"regex": "a", "whitespace_pattern": " "},
        {"jsn": {}},
        {"json": {}, "structural_tag": "x"},
        "json",
    ],
)
def test_a_form_that_is_none_is_refused(given):
    with pytest.raises(RequestError):
        StructuredOutputsParams.read(given)


def test_a_schema_may_be_text_mapping_or_pydantic_model():
    pydantic = pytest.importorskip("pydantic")

    class Point(pydantic.BaseModel):
        x: int

    as_text = StructuredOutputsParams(json='{"type": "object"}')
    assert as_text == StructuredOutputsParams(json={"type": "object"})
    assert hash(as_text) == hash(StructuredOutputsParams(json={"type": "object"}))
    assert '"x"' in StructuredOutputsParams(json=Point).source


@pytest.mark.parametrize("name", ["$id", "id"])
def test_an_id_beside_a_ref_is_refused_where_the_draft_ignores_it(name):
    old, new = (
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    )
    part = {"$ref": "name.json", name: "http://localhost/other/"}
    for schema in ({"$schema": old, "items": part}, {"$schema": old, "properties": {"a": [part]}}):
        with pytest.raises(RequestError, match=r"beside a \$ref"):
            StructuredOutputsParams(json=schema)
    StructuredOutputsParams(json={"$schema": new, "items": part})
    StructuredOutputsParams(json={"$schema": old, **part})  # an id of the whole document
    StructuredOutputsParams(json={"$schema": old, "properties": {"$ref": {}, name: {}}})


@pytest.mark.parametrize("other", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_would_go_on_after_the_end_is_refused(other):
    form = StructuredOutputsParams(json_object=True)
    with pytest.raises(RequestError, match="exclude each other"):
        SamplingParams(structured_outputs=form, **other)
    assert SamplingParams(structured_outputs={"json_object": True}).structured_outputs == form


def test_depth_counts_levels_of_lists_and_objects():
    assert depth({}) == depth(7) == 0
    assert depth({"a": 1}) == 1
    assert depth({"a": [{"b": 1}], "c": 2}) == 3
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    assert depth(deep) == 5000


PERSON = {"properties": {"name": {}}}
CLOSED = PERSON | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (PERSON, CLOSED),
        ({"items": PERSON}, {"items": CLOSED}),
        ({"$defs": {"p": PERSON}}, {"$defs": {"p": CLOSED}}),
        ({"anyOf": [PERSON, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"properties": {"p": PERSON}},
            {"properties": {"p": CLOSED}, "additionalProperties": False},
        ),
        ({"additionalProperties": PERSON}, {"additionalProperties": CLOSED}),
    ],
)
def test_objects_have_no_other_properties_than_named(schema, expected):
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        PERSON | {"additionalProperties": True},
        PERSON | {"anyOf": [{"required": ["other"]}, PERSON]},
        {"allOf": [{"$ref": "#/$defs/p"}, {"properties": {"age": {}}}], "$defs": {"p": PERSON}},
    ],
)
def test_objects_that_say_otherwise_stay_open(schema):
    assert closed(schema) == schema
