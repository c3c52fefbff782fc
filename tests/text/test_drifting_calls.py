"""Calls as models drift from their family's form: what they mean is read, and a call that is cut is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from forerun.text.parsing.forms import AnswerForm
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, ReasoningPart
from tests.text.answers import (
    GEMMA,
    GLM,
    HARMONY,
    LFM2,
    MINIMAX,
    MISTRAL,
    QWEN,
    parts,
)

WRITER = {
    "write": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "n": {"type": "integer"},
            "data": {"type": "object"},
        },
    },
    "mcp/größe:read": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
DRIFTS: tuple[tuple[AnswerForm, str, dict[str, Any]], ...] = (
    (QWEN, "<tool_call>{'name': 'write', 'arguments': {'path': 'a', 'n': 1}}</tool_call>", {}),
    (QWEN, "<tool_call>{name: write, arguments: {path: a, n: 1,}}</tool_call>", {}),
    (QWEN, '<tool_call>write(path="a", n=1)</tool_call>', {}),
    (QWEN, "<tool_call>write path=a n=1</tool_call>", {}),
    (QWEN, '<tool_call>functions.write(path="a", n=1)</tool_call>', {}),
    (QWEN, '<tool_call>{"name": "tools:write", "arguments": {"path": "a", "n": 1}}</tool_call>', {}),
    (QWEN, "<tool_call>{'name': 'write', 'arguments': {'path': 'it's', 'n': 1}}</tool_call>",
     {"path": "it's", "n": 1}),
    (QWEN, "<tool_call>{name: write, arguments: {path: 007, n: 1}}</tool_call>",
     {"path": "007", "n": 1}),
    (GEMMA, "<|tool_call>call:write{path:a,n:1}<tool_call|>", {}),
    (GEMMA, "<|tool_call>call:write{data:{$a b:1,城:[2fa,true]}}<tool_call|>",
     {"data": {"$a b": 1, "城": ["2fa", True]}}),
    (GEMMA, '<|tool_call>call:write{path:<|"|>at 1:2, {b: "c"}<|"|>}<tool_call|>',
     {"path": 'at 1:2, {b: "c"}'}),
    (LFM2, "<|tool_call_start|>[write(path='it's', content='a\nb')]<|tool_call_end|>",
     {"path": "it's", "content": "a\nb"}),
    (LFM2, "<|tool_call_start|>[write(path=a, n=1)]<|tool_call_end|>", {}),
    (MISTRAL, '[TOOL_CALLS]write[ARGS]{"path": "a", "n": 1}', {}),
    (MINIMAX, '<minimax:tool_call>\n<invoke name="write">\n<parameter name="content">a\n</parameter>'
     "\n</invoke>\n</minimax:tool_call>", {"content": "a\n"}),
    (GLM, "<tool_call>write<arg_key>path</arg_key><arg_value>a </arg_value> b </tool_call> c"
     "</arg_value></tool_call>", {"path": "a </arg_value> b </tool_call> c"}),
    (QWEN, "<tool_call>\n<function=write>\n<parameter=content>\n</tool_call> <b>\n\n</parameter>\n"
     "</function>\n</tool_call>", {"content": "</tool_call> <b>\n"}),
    (QWEN, "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n</tool_call>",
     {"path": "a"}),
)  # fmt: skip
"""Calls as models drift from their forms; of most the arguments are these:"""
DRIFTED = {"path": "a", "n": 1}


@pytest.mark.parametrize(("form", "text", "arguments"), DRIFTS)
def test_what_a_model_drifts_to_is_the_call_that_it_means(form, text, arguments) -> None:
    for cuts in ([], [*range(len(text))]):
        found = parts(form, text, cuts, tools=WRITER)
        assert found[0] == CallPart("write")
        (spelled,) = found[1:]
        assert json.loads(spelled.text) == (arguments or DRIFTED)


@pytest.mark.parametrize(("form", "text", "arguments"), DRIFTS)
def test_a_call_that_is_cut_is_none(form, text, arguments) -> None:
    """Wherever the limit falls: what is handed on of a whole answer is the whole call, or none."""
    for length in range(len(text)):
        parser = form.parser("", tools=WRITER)
        found = parser.read(text[:length], is_last=True, is_cut=True)
        calls = [part for part in found if isinstance(part, CallPart)]
        assert parser.num_calls == len(calls)
        if calls:
            whole = "".join(part.text for part in found if isinstance(part, ArgumentsPart))
            assert json.loads(whole) == (arguments or DRIFTED)


@pytest.mark.parametrize("name", ["write", "mcp/größe:read"])
def test_a_call_ends_a_thought_that_is_not_closed(name) -> None:
    form = replace(QWEN, thinking=replace(QWEN.thinking, has_begun=True))
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {{"n": 1}}}}\n</tool_call>'
    thought = "I could write <tool_call> here"
    called = [CallPart(name), ArgumentsPart('{"n": 1}')]
    for cuts in ([], [*range(len(thought + call))]):
        found = parts(form, f"{thought}. {call}", cuts, "<think>", tools=WRITER)
        assert [part.text for part in found if isinstance(part, ReasoningPart)] == [f"{thought}."]
        assert found[1:] == called
        for rest in (" and so on", " or not.</think>Done."):
            found = parts(form, f"{thought}. {call}{rest}", cuts, "<think>", tools=WRITER)
            assert not any(isinstance(part, CallPart) for part in found)
            assert "".join(part.text for part in found).startswith(f"{thought}. {call}{rest[:4]}")


def test_what_stands_before_a_bare_closing_mark_is_a_thought() -> None:
    found = parts(QWEN, "Let me see.</think>\n\nFour.", [])
    assert found == [ReasoningPart("Let me see."), ContentPart("Four.")]


def test_a_call_without_marks_is_handed_on_as_it_comes() -> None:
    parser = QWEN.parser("", tools=WRITER)
    call = '{"name": "write", "arguments": {"path": "a", "content": "b"}}'
    found = [parser.read(sign, is_last=False) for sign in call]
    assert sum(map(bool, found)) > 20
    assert parser.read("", is_last=True) == []
    assert parser.num_calls == 1


def test_a_recipient_that_is_a_tool_is_called() -> None:
    head = "<|channel|>commentary to={} <|constrain|>json<|message|>"
    for name, is_call in (("write", True), ("functions.other", True), ("other", False)):
        found = parts(HARMONY, head.format(name) + '{"n": 1}<|call|>', [], tools=WRITER)
        assert any(isinstance(part, CallPart) for part in found) == is_call
