"""What models think, say and call is told apart in the form of each family, however the text comes in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.text.parsing.forms import AnswerForm, form_of
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, Part, ReasoningPart
from tests.text.answers import (
    ANSWERS,
    CALL,
    COMMAND,
    GEMMA,
    HARMONY,
    KIMI,
    LLAMA,
    MINIMAX_M3,
    QWEN,
    TOOLS,
    XML,
    parts,
)


@pytest.mark.parametrize(("form", "text", "expected"), ANSWERS)
def test_answers_are_split_letter_by_letter(
    form: AnswerForm, text: str, expected: list[Part]
) -> None:
    assert parts(form, text, [*range(len(text))]) == expected


@pytest.mark.parametrize(("form", "text", "expected"), ANSWERS)
@settings(max_examples=50)
@given(data=st.data())
def test_answers_are_split_wherever_they_are_cut(
    form: AnswerForm, text: str, expected: list[Part], data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert parts(form, text, cuts) == expected


@given(text=st.text(st.sampled_from('<>/|tool_calhnk[]{}":f= \n')), which=st.sampled_from(ANSWERS))
def test_any_text_is_split_alike_in_pieces(
    text: str, which: tuple[AnswerForm, str, list[Part]]
) -> None:
    assert parts(which[0], text, [*range(len(text))]) == parts(which[0], text, [])


def test_a_thought_may_have_begun_in_the_prompt() -> None:
    found = parts(QWEN, "hm\n</think>\nYes.", [3, 7], "<|im_start|>assistant\n<think>\n")
    assert found == [ReasoningPart("hm"), ContentPart("Yes.")]


def test_thoughts_and_calls_that_are_not_asked_for_are_text() -> None:
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    assert parts(QWEN, text, [], with_reasoning=False, tools={}) == [ContentPart(text)]
    assert parts(QWEN, text, [], tools={})[0] == ReasoningPart("a")
    assert parts(HARMONY, "<|channel|>analysis<|message|>a<|end|>", [], with_reasoning=False) == [
        ContentPart("a")
    ]


@pytest.mark.parametrize("form", [KIMI, GEMMA, COMMAND, MINIMAX_M3, LLAMA])
def test_calls_in_hermes_form_are_read_whatever_the_family(form: AnswerForm) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert parts(form, text, []) == CALL


def test_an_answer_that_goes_on_with_a_message_begins_within_it() -> None:
    begun = "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Well"
    assert parts(HARMONY, ", yes.<|return|>", [], prompt=begun) == [ContentPart(", yes.")]


@pytest.mark.parametrize(
    "text", ["<|tool_call>call:f{x:}<tool_call|>", "<|tool_call>nothing<tool_call|>"]
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parts(GEMMA, text, []) == [ContentPart(text)]


def test_results_that_a_model_makes_up_behind_its_call_are_left_out() -> None:
    call = '{"name": "f", "arguments": {"x": 1}}'
    for text in (
        call + '\n{"ok": 0}',
        f"{call}\n[1]\n{call}",
        f'```json\n{call}\n{{"ok": 0}}\n```',
    ):
        assert parts(QWEN, text, [*range(len(text))]) == CALL
    for text in ('{"ok": 0}\n' + call, f'[{call}, {{"ok": 0}}]'):
        assert parts(QWEN, text, []) == [ContentPart(text)]
    assert parts(QWEN, call + "\nis how", []) == [*CALL, ContentPart("is how")]


@pytest.mark.parametrize(
    "text",
    [
        'Like this:\n```json\n{"name": "f", "arguments": {"x": 1}}\n```',
        '```json\n{"name": "f", "arguments": {"x": 1}}\n```\nThis calls f.',
        '{"name": "Bob", "age": 3}',
        "[f]",
        "f",
    ],
)
def test_an_object_is_a_call_only_as_the_whole_answer(text: str) -> None:
    assert parts(QWEN, text, [*range(len(text))]) == [ContentPart(text)]


def test_a_call_without_marks_that_has_no_end_is_text_wherever_it_is_cut() -> None:
    text = '{"name": "f", "arguments": {"x": '
    for at in range(text.rindex("{") + 1):
        assert parts(QWEN, text, [at]) == [ContentPart(text)]


def test_a_call_without_an_end_takes_no_arguments_from_the_next_one() -> None:
    text = (
        '<tool_call>{"name": "f", "arguments": {"x": "1}</tool_call><tool_call>f(x=1)</tool_call>'
    )
    unfinished = [CallPart("f"), ArgumentsPart('{"x": "1}"}')]
    for cuts in ([], [*range(len(text))]):
        assert parts(QWEN, text, cuts) == [*unfinished, *CALL]


def test_a_call_that_a_limit_cuts_is_none_unless_it_was_handed_on() -> None:
    text = XML[:-30]
    assert QWEN.parser("", tools=TOOLS).read(text, is_last=True, is_cut=True) == []
    parser = QWEN.parser("", tools=TOOLS)
    assert CallPart("f") in parser.read(text[:60], is_last=False)
    assert not any(
        isinstance(part, CallPart) for part in parser.read(text[60:], is_last=True, is_cut=True)
    )
    assert parser.num_calls == 1


def test_text_that_cannot_be_a_call_is_not_held_back() -> None:
    for text in ("Hello", '{"name": "Bob"', '{"ok"', "```python\np", "[1"):
        assert QWEN.parser("", tools=TOOLS).read(text, is_last=False) == [ContentPart(text)]


def test_the_vocabulary_tells_a_family_whose_template_writes_no_calls() -> None:
    form = form_of("{{ tools }}", {"<|tool_call_start|>": 0}.get)
    assert parts(form, "<|tool_call_start|>[f(x=1)]<|tool_call_end|>", []) == CALL
    assert form_of("<tool_call>", {"<|python_tag|>": 0}.get).calls.open == "<tool_call>"
