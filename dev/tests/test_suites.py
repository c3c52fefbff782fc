"""What the suites of `dev/suites` measure with: a value can be written under a form or not."""

from __future__ import annotations

import pytest

from dev.suites.json_schema.reader import Reader
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.guidance import Grammars
from forerun.weights.checkpoint import open_checkpoint

pytest.importorskip("llguidance", reason="structured output needs llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "string", "maxLength": 3}},
    "required": ["b"],
}


@pytest.fixture(scope="module")
def written(default_model):
    tokenizer = open_checkpoint(default_model).tokenizer()
    start = Grammars(tokenizer, tokenizer.vocab_size).start(StructuredOutputsParams(json=SCHEMA))
    reader = Reader(tokenizer, tokenizer.vocab_size)
    return lambda value: reader.writes(start, value)


def test_a_value_is_written_in_the_order_and_the_spelling_of_its_schema(written):
    assert written({"a": "é12", "b": 1.0}) == '{"b": 1, "a": "é12"}'
    assert written({"b": -7}) == '{"b": -7}'


@pytest.mark.parametrize(
    "value", [{}, {"a": "x"}, {"b": 1.5}, {"b": 1, "a": "long"}, {"b": 1, "c": 2}, [], 1]
)
def test_a_value_against_the_schema_has_no_spelling(value, written):
    assert written(value) is None
