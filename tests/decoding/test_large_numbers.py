"""Numbers of schemas beyond 2**53: what is valid may be written, and nothing else."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.errors import RequestError
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.guidance import Grammars
from forerun.decoding.schemas import LargeNumbers, digits
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint

pytest.importorskip("llguidance", reason="structured output needs llguidance")
jsonschema = pytest.importorskip("jsonschema", reason="answers are checked by jsonschema")
L = 2**53
ID = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
LIST = {"type": "array", "items": {"$ref": "#/$defs/id"}, "maxItems": 3}
NODE = {"type": "object", "properties": {"ids": LIST, "next": {"$ref": "#/$defs/node"}}}
CASES: list[tuple[Any, list[Any]]] = [
    ({"enum": [L + 1, "a", [L + 3], {"x": L + 5}]}, [L + 1, "a", [L + 3], L, L + 2, [L + 4]]),
    ({"const": 10**20 + 1}, [10**20 + 1, 10**20]),
    (ID, [0, 7, L, L + 1, 2**64 - 1, 2**64, -1]),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [-(2**63), 2**63 - 1, -(2**63) - 1, 2**63, 5]),
    ({"type": "integer", "minimum": L + 1}, [L + 1, 10**30, L, 0, -L]),
    ({"type": "integer", "exclusiveMinimum": L, "exclusiveMaximum": L + 3}, [L, L + 1, L + 2, L + 3]),
    ({"type": ["integer", "null"], "minimum": 10**18}, [None, 10**18, 10**18 - 1, 10**40]),
    ({"type": "number", "minimum": 0.5, "maximum": 1e20}, [0.5, 0.25, 3, 10**20, 10**20 + 1, L + 1]),
    ({"type": "number", "maximum": L + 10}, [L + 10, L + 9, L + 11, -(10**20), 5]),
    ({"type": "object", "properties": {"a": {"type": "string"}, "id": ID, "b": {"type": "null"}}, "required": ["id"]},
     [{"id": L + 1}, {"a": "x", "id": 1}, {"id": 3, "b": None}, {"a": "x", "b": None}, {"id": -1}, {}]),
    ({"type": "object", "additionalProperties": {"anyOf": [ID, {"type": "boolean"}]}},
     [{}, {"x": L + 1, "y": True}, {"x": -1}]),
    ({"$ref": "#/$defs/node", "$defs": {"id": ID, "node": NODE}},
     [{}, {"ids": []}, {"ids": [1, L + 1], "next": {"ids": [2]}}, {"ids": [1, 2, 3, 4]}, {"next": {"ids": [-1]}}]),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(default_model) -> Tokenizer:
    return open_checkpoint(default_model).tokenizer()


@pytest.fixture(scope="module")
def grammars(tokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer.vocab_size)


@pytest.mark.parametrize(("schema", "values"), CASES)
def test_values_are_allowed_as_the_schema_says(grammars, tokenizer, schema, values):
    valid = [jsonschema.Draft202012Validator(schema).is_valid(value) for value in values]
    assert {*valid} == {True, False}
    for value, is_valid in zip(values, valid, strict=True):
        state = grammars.start(StructuredOutputsParams(json=schema))
        tokens = tokenizer.encode(json.dumps(value), bos=False)
        taken = state.matcher.try_consume_tokens(tokens)
        found = taken == len(tokens) and state.matcher.is_accepting()
        assert found == is_valid, value


@settings(max_examples=60)
@given(st.integers(1, 10**7), st.integers(0, 10**7), st.integers(0, 2 * 10**7))
def test_digits_match_the_numbers_of_a_range(low, size, number):
    for high in (low + size, None):
        pattern = "|".join(digits(low, high))
        for each in (number, low, low - 1, low + size, low + size + 1):
            wanted = low <= each and (high is None or each <= high)
            assert (re.fullmatch(pattern, str(each)) is not None) == wanted


@pytest.mark.parametrize(
    ("schema", "written", "others"),
    [
        ({"maximum": L + 10}, ["0.5", f"{L + 9}.9", f"{L + 10}.00"], [f"{L + 10}.9"]),
        ({"minimum": -L - 10}, [f"-{L + 9}.9", f"-{L + 10}.0"], [f"-{L + 10}.9"]),
        ({"exclusiveMaximum": L + 10}, [f"{L + 9}.9"], [f"{L + 10}", f"{L + 10}.0"]),
        ({"minimum": L + 10, "maximum": L + 10}, [f"{L + 10}"], [f"{L + 10}.5", f"{L + 9}.5"]),
        ({"maximum": L + 3, "exclusiveMaximum": L + 3}, [f"{L + 2}.9"], [f"{L + 3}"]),
        ({"minimum": -1.7e308, "maximum": 1.7e308}, [f"{L + 10}.9", "-0.5"], ["a"]),
    ],
)
def test_a_fraction_is_within_the_bounds_too(grammars, tokenizer, schema, written, others):
    for text in (*written, *others):
        state = grammars.start(StructuredOutputsParams(json={"type": "number", **schema}))
        tokens = tokenizer.encode(text, bos=False)
        taken = state.matcher.try_consume_tokens(tokens)
        assert (taken == len(tokens) and state.matcher.is_accepting()) == (text in written), text


def test_bounds_of_hundreds_of_digits_take_no_time(grammars):
    big = 10**307
    either = {
        f"k{i}": {"type": "integer", "maximum": big - i, "minimum": i - big} for i in range(90)
    }
    start_s = time.thread_time()
    source = LargeNumbers({"type": "object", "properties": either}, {}).lark()
    assert time.thread_time() - start_s < 0.5
    assert len(source) < 100_000


def test_what_cannot_go_with_them_is_refused_in_words(grammars):
    schema = {"type": "integer", "minimum": 10**18, "multipleOf": 3}
    with pytest.raises(RequestError, match="beyond 2\\*\\*53 do not go with multipleOf"):
        grammars.start(StructuredOutputsParams(json=schema))
