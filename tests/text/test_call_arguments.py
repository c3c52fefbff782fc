"""Arguments of calls come as JSON of the types that the schema says, whatever the model writes of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.text.parsing.forms import AnswerForm
from forerun.text.parsing.json_text import JsonText
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart
from tests.text.answers import GEMMA, HARMONY, KIMI, MISTRAL, QWEN, TOOLS, parts


def test_arguments_come_while_they_are_written() -> None:
    for form, head in (
        (QWEN, '<tool_call>{"name": "f", "arguments": '),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]"),
    ):
        parser = form.parser("", tools=TOOLS)
        assert parser.read(f'{head}{{"x', is_last=False) == [CallPart("f"), ArgumentsPart('{"x')]


UNESCAPED = r"""{"x": "C:\work\\x \u00e9 \u12 \" \_
"}"""
"""What a model writes of a path, and a line that it ends in a text."""


@pytest.mark.parametrize(
    ("form", "head", "tail"),
    [
        (QWEN, '{"name": "f", "arguments": ', "}"),
        (QWEN, '<tool_call>{"name": "f", "arguments": ', "}</tool_call>"),
        (QWEN, "<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]", ""),
        (KIMI, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        (HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>"),
    ],
)
@settings(max_examples=20)
@given(data=st.data())
def test_what_is_not_escaped_in_arguments_is(
    form: AnswerForm, head: str, tail: str, data: st.DataObject
) -> None:
    text = head + UNESCAPED + tail
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    (call, arguments) = parts(form, text, cuts)
    assert call == CallPart("f")
    assert isinstance(arguments, ArgumentsPart)
    assert json.loads(arguments.text) == {"x": 'C:\\work\\x é \\u12 " \\_\n'}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=25)
@given(
    value=st.dictionaries(st.text(), JSON),
    is_ascii=st.booleans(),
    cuts=st.lists(st.integers(0, 99)),
)
def test_json_stays_as_it_is(value: dict[str, Any], is_ascii: bool, cuts: list[int]) -> None:
    text, json_text, written = json.dumps(value, ensure_ascii=is_ascii), JsonText(), ""
    for start, stop in itertools.pairwise(sorted({0, *cuts, len(text)})):
        written += json_text.push(text[start:stop])[0]
    assert written == text
    assert json_text.is_complete


def test_a_mark_ends_a_call_whose_text_has_no_end() -> None:
    r"""As of a path: in "C:\" the quote is escaped. A mark within a text that ends is of the text."""
    head = '<tool_call>{"name": "f", "arguments": {"x": "'
    text = head + 'C:\\"}}</tool_call>Done.'
    for cuts in ([], [*range(len(text))]):
        (call, arguments, said) = parts(QWEN, text, cuts)
        assert (call, said) == (CallPart("f"), ContentPart("Done."))
        assert isinstance(arguments, ArgumentsPart)
        assert json.loads(arguments.text) == {"x": 'C:"}}'}
    text = head + 'a</tool_call> b"}}</tool_call>Done.'
    for cuts in ([], [*range(len(text))]):
        (_, arguments, said) = parts(QWEN, text, cuts)
        assert arguments == ArgumentsPart('{"x": "a</tool_call> b"}')
        assert said == ContentPart("Done.")


def test_texts_in_gemmas_quotes_may_hold_anything() -> None:
    value = 'say: {"a": 1}, [b] \\ "'
    (_, arguments) = parts(GEMMA, f'<|tool_call>call:f{{x:<|"|>{value}<|"|>}}<tool_call|>', [])
    assert isinstance(arguments, ArgumentsPart)
    assert json.loads(arguments.text) == {"x": value}


VALUES = {
    "text": ({"type": "string"}, "1.10", "1.10"),
    "json text": ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    "null text": ({"type": "string"}, "None", "None"),
    "maybe": ({"type": ["string", "null"]}, "null", None),
    "either": ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", "5"),
    "choice": ({"enum": ["1", "2"]}, "1", "1"),
    "elsewhere": ({"$ref": "#/$defs/word"}, "true", "true"),
    "number": ({"type": "integer"}, "12345678901234567890123", 12345678901234567890123),
    "truth": ({"type": "boolean"}, "True", True),
    "list": ({"type": "array"}, '["a"]', ["a"]),
    "unknown": (None, "[1]", [1]),
    "python": ({"type": "array"}, "['a', True, None]", ["a", True, None]),
    "no list": ({"type": "array"}, "[b'a']", "[b'a']"),
    "no number": ({"type": "object"}, "{'a': 1e999}", "{'a': 1e999}"),
    "no json": ({"type": "integer"}, "NaN", "NaN"),
    "marks": ({"type": "string"}, "a </parameter> b", "a </parameter> b"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_between_tags_have_the_type_of_the_schema(name: str) -> None:
    schema, written, expected = VALUES[name]
    tools = {
        "f": {
            "type": "object",
            "properties": {} if schema is None else {"x": schema},
            "$defs": {"word": {"type": "string"}},
        }
    }
    texts = [
        f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>"
    ]
    if name != "marks":
        texts.append(
            f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{written}</arg_value>\n</tool_call>"
        )
    for text in texts:
        (_, arguments) = parts(QWEN, text, [], tools=tools)
        assert isinstance(arguments, ArgumentsPart)
        assert json.loads(arguments.text) == {"x": expected}


def test_a_familys_own_ids_are_kept() -> None:
    kimi = '<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>'
    for form, text, own in (
        (KIMI, kimi, "functions.f:3"),
        (MISTRAL, '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"x": 1}', "abcdefghi"),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefghi"}]', "abcdefghi"),
    ):
        assert parts(form, text, [])[0].id == own


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("\na\n", "a"),
        ("\na\n\n", "a\n"),
        ("a\n", "a\n"),
        ("a", "a"),
        ("\nline\n" * 9, ("\nline\n" * 9)[1:-1]),
        ("line\n" * 9, "line\n" * 9),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_last_end_of_a_line_is_the_values_unless_it_stands_on_lines_of_its_own(
    written: str, value: str, step: int
) -> None:
    """Qwen3-Coder's values have lines of their own, Seed-OSS' do not."""
    text = (
        f"<tool_call>\n<function=f>\n<parameter=y>{written}</parameter>\n</function>\n</tool_call>"
    )
    (call, arguments) = parts(QWEN, text, range(step, len(text), step))
    assert call == CallPart("f")
    assert isinstance(arguments, ArgumentsPart)
    assert json.loads(arguments.text) == {"y": value}
