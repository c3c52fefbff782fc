"""Tool calls are found in any text, however it comes in pieces, and what is none stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.core.errors import RequestError
from forerun.text.messages import plain
from forerun.text.parsing.parser import MarkParser
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, Part
from forerun.text.tool_prompt import described
from tests.text.answers import parts_of

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}</tool_call>\\"", "b": [{}]}}\n</tool_call>'
ARGUMENTS = '{"a": "}</tool_call>\\"", "b": [{}]}'
TWO = '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g"}]</tool_call>'
OTHER = '<tool_call>{"arguments": {"x": 1}, "name": "h"}</tool_call>'


def parts(text: str, cuts: list[int] = ()) -> list[Part]:
    return parts_of(MarkParser(), text, cuts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  hello < there \n", [ContentPart("  hello < there \n")]),
        (CALL, [CallPart("f"), ArgumentsPart(ARGUMENTS)]),
        (f"Well.\n\n{CALL}\n", [ContentPart("Well."), CallPart("f"), ArgumentsPart(ARGUMENTS)]),
        (f"{CALL}\n{CALL}", [CallPart("f"), ArgumentsPart(ARGUMENTS)] * 2),
        (TWO, [CallPart("f"), ArgumentsPart("{}"), CallPart("g"), ArgumentsPart("{}")]),
        (OTHER, [CallPart("h"), ArgumentsPart('{"x": 1}')]),
        (OTHER.replace("</tool_call>", ""), [CallPart("h"), ArgumentsPart('{"x": 1}')]),
        ("<tool_call>nothing</tool_call>", [ContentPart("<tool_call>nothing</tool_call>")]),
        ("<tool_call>", [ContentPart("<tool_call>")]),
        ('<tool_call>{"name": "f", "arguments": {"a', [CallPart("f"), ArgumentsPart('{"a')]),
        ("a <tool_cal", [ContentPart("a <tool_cal")]),
        (f"{CALL} and more", [CallPart("f"), ArgumentsPart(ARGUMENTS), ContentPart(" and more")]),
    ],
)
def test_text_and_calls_are_told_apart(text, expected):
    assert parts(text) == expected


SNIPPETS = st.sampled_from(
    [CALL, TWO, OTHER, "<tool_call>", "</tool_call>", "{", '"', "a", " ", "\n"]
)


@given(st.lists(SNIPPETS, max_size=6).map("".join), st.data())
def test_the_parts_do_not_depend_on_the_pieces(text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert parts(text, cuts) == parts(text)


VALUES = st.text(max_size=8) | st.integers() | st.lists(st.text(max_size=3), max_size=2)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
@example({"</tool_call>": '"\\'})
def test_arguments_come_through_as_they_were_written(arguments):
    call = json.dumps({"name": "f", "arguments": arguments})
    (called, argued) = parts(f"<tool_call>\n{call}\n</tool_call>", [*range(len(call))])
    assert called == CallPart("f")
    assert json.loads(argued.text) == arguments


@pytest.mark.parametrize("call", [5, None, "f", [], {"function": 5}, {"function": None}])
def test_a_call_that_is_none_is_a_request_error(call):
    said = {"role": "assistant", "content": "a", "tool_calls": [call]}
    with pytest.raises(RequestError, match="a tool call must be"):
        described([said], None)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", {}),
        (None, {}),
        ({}, {}),
        ('{"a": 1}', {"a": 1}),
        (json.dumps('{"a": 1}'), {"a": 1}),
        ('{"a": "cut', {"arguments": '{"a": "cut'}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_arguments_are_an_object_whatever_was_written(given, read):
    call = {"id": "1", "function": {"name": "f", "arguments": given}}
    (found,) = plain([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert found["tool_calls"][0]["function"]["arguments"] == read
    assert found["content"] == ""


def test_nothing_that_is_null_or_empty_comes_to_a_template():
    said = {"role": "assistant", "content": "a", "refusal": None, "function_call": None}
    for calls in ([], None):
        (found,) = plain([said | {"tool_calls": calls}])
        assert found == {"role": "assistant", "content": "a"}
    (found,) = plain([{"role": "developer", "content": [{"type": "refusal", "refusal": "No."}]}])
    assert found == {"role": "system", "content": "No."}
    (found,) = plain([{"role": "assistant", "reasoning": "hm"}])
    assert found["reasoning_content"] == "hm"


def test_arguments_nested_too_deep_to_read_stay_text():
    deep = "[" * 100_000
    call = {"function": {"name": "f", "arguments": deep}}
    (found,) = plain([{"role": "assistant", "tool_calls": [call]}])
    assert found["tool_calls"][0]["function"]["arguments"] == {"arguments": deep}


def test_a_conversation_for_a_template_without_tools_is_text():
    tools = [{"type": "function", "function": {"name": "f"}}]
    function = {"name": "f", "arguments": '{"a": 1}'}
    messages = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    system, asked, called, answered = described(messages, tools)
    assert '"name": "f"' in system["content"]
    assert asked == messages[0]
    assert parts(called["content"]) == [CallPart("f"), ArgumentsPart('{"a": 1}')]
    assert answered == {"role": "user", "content": "<tool_response>\ndone\n</tool_response>"}
    own = [{"role": "system", "content": "Be kind."}, *messages]
    assert described(own, tools)[0]["content"].startswith("Be kind.\n\n# Tools")
    assert described(messages, None)[0] == messages[0]
