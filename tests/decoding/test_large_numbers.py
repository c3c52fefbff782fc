"""Numbers of schemas beyond 2**53: what is written is valid. Bounds are moved inward, values are exact."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import RequestError
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.calls import in_json
from forerun.decoding.guidance import Grammars
from forerun.decoding.schemas import FARTHEST, readable, unreadable
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint

pytest.importorskip("llguidance", reason="structured output needs llguidance")
L = 2**53
ID = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
LIST = {"type": "array", "items": {"$ref": "#/$defs/id"}, "maxItems": 3}
BIG = {"enum": [L + 1, L + 3]}
NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"ids": {"type": "array", "items": {"$ref": "#/$defs/id"}, "maxItems": 3}},
}
NODE["properties"]["next"] = {"$ref": "#/$defs/node"}
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (ID, [0, 7, L, L + 1, 2**62], [2**62 + 1, 2**64, -1]),
    (INT64, [-(2**62), 2**62, 5], [-(2**62) - 1, 2**63]),
    ({"type": "integer", "minimum": L + 1}, [L + 2, 10**18 + 1], [L, 0, -L]),
    ({"type": "integer", "exclusiveMinimum": L, "exclusiveMaximum": L + 3}, [L + 2], [L, L + 3]),
    ({"type": ["integer", "null"], "minimum": 10**18}, [None, 10**18], [10**18 - 1]),
    ({"type": "integer", "minimum": 10**18, "multipleOf": 3}, [10**18 + 2], [10**18, 10**18 + 1]),
    ({"type": "number", "minimum": 0.5, "maximum": 1e20}, [0.5, 3, L + 1, 0.75], [0.25, 10**20 + 1]),
    ({"type": "number", "maximum": L + 10}, [L + 10, L + 9, 5, -(10**20)], [L + 11]),
    ({"type": "number", "minimum": -1.7e308, "maximum": 1.7e308}, [L + 0.0, -0.5], ["a"]),
    ({"anyOf": [LIST, {"type": "null"}], "$defs": {"id": ID}}, [[], [1, L + 1], None], [[1, 2, 3, 4], [-1]]),
    ({"enum": [L + 1, "a", [L + 3], {"x": L + 5}]}, [L + 1, "a", [L + 3]], [L, L + 2, [L + 4]]),
    ({"const": 10**20 + 1}, [10**20 + 1], [10**20]),
    ({"type": "object", "properties": {"a": {"type": "string"}, "id": BIG, "b": {"type": "null"}}, "required": ["id"]},
     [{"id": L + 1}, {"a": "x", "id": L + 3}, {"id": L + 3, "b": None}], [{"a": "x", "b": None}, {"id": L}, {}]),
    ({"type": "object", "additionalProperties": {"anyOf": [BIG, {"type": "boolean"}]}},
     [{}, {"x": L + 1, "y": True}], [{"x": L}]),
    ({"$ref": "#/$defs/node", "$defs": {"id": BIG, "node": NODE}},
     [{}, {"ids": []}, {"ids": [L + 3, L + 1], "next": {"ids": [L + 1]}}],
     [{"ids": [L + 1] * 4}, {"next": {"ids": [L]}}]),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(default_model) -> Tokenizer:
    return open_checkpoint(default_model).tokenizer()


@pytest.fixture(scope="module")
def grammars(tokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer.vocab_size)


@pytest.mark.parametrize(("schema", "allowed", "others"), CASES)
def test_values_within_the_bounds_may_be_written(grammars, tokenizer, schema, allowed, others):
    for value in (*allowed, *others):
        state = grammars.start(StructuredOutputsParams(json=schema))
        tokens = tokenizer.encode(json.dumps(value), bos=False)
        taken = state.matcher.try_consume_tokens(tokens)
        found = taken == len(tokens) and state.matcher.is_accepting()
        assert found == (value in allowed), value


@given(
    st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    st.integers(-(2**70), 2**70) | st.integers(-L - 9, L + 9),
)
def test_a_bound_moves_inward_to_a_number_that_floats_hold(name, bound):
    is_low, is_exclusive = "inimum" in name, name.startswith("exclusive")
    if abs(bound) > FARTHEST and is_low == (bound > 0):
        with pytest.raises(ValueError, match=rf"{name} is .* beyond 2\*\*62"):
            readable({name: bound})
        return
    moved = readable({name: bound})
    if abs(bound) < L:
        assert moved == {name: bound}
        return
    first = moved["minimum" if is_low else "maximum"]
    assert float(first) == first
    inside = first - bound if is_low else bound - first
    assert inside >= is_exclusive
    assert inside <= 1024 or abs(bound) > FARTHEST


def test_what_cannot_hold_them_is_refused_in_words(grammars):
    schema = {"properties": {"x": {"const": {"y": -(2**63)}}}}
    with pytest.raises(RequestError, match=r"values beyond 2\*\*53 need the type of what holds"):
        grammars.start(StructuredOutputsParams(json=schema))
    schema = {"type": "array", "items": BIG, "uniqueItems": True}
    with pytest.raises(RequestError, match=r"beyond 2\*\*53 do not go with uniqueItems"):
        grammars.start(StructuredOutputsParams(json=schema))


def test_a_range_that_lies_beyond_is_refused(grammars):
    with pytest.raises(RequestError, match=r"minimum is 4722.*: numbers beyond 2\*\*62 are not"):
        grammars.start(StructuredOutputsParams(json={"type": "integer", "minimum": 2**72}))


@pytest.mark.parametrize("part", [{"type": "integer", "minimum": 2**72}, {"const": -(2**63)}])
def test_arguments_that_cannot_be_written_are_free_or_refused_by_name(part):
    schema = {"type": "object", "properties": {"x": part}, "required": ["x"]}
    assert "beyond 2**" in unreadable(schema)
    with pytest.raises(
        RequestError, match=r"the parameters of a tool cannot be used: .* beyond 2\*\*"
    ) as refused:
        in_json(schema)
    assert refused.value.option == "tools"
