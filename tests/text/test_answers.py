"""What models think, say and call is told apart in the form of each family, however the text comes in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.text.answers.forms import AnswerForm, form_of
from forerun.text.answers.parts import ArgumentsPart, CallPart, Part, ReasoningPart, TextPart

QWEN = form_of("{% if x %}<think>{% endif %}<tool_call>")
MISTRAL = form_of("[THINK][TOOL_CALLS]")
GEMMA = form_of("<|tool_call><|channel>")
HARMONY = form_of("<|start|>assistant<|channel|>")
GRANITE, OLMO, LLAMA = (
    form_of("<|tool_call|>"),
    form_of("<function_calls>"),
    form_of("<|python_tag|>"),
)
CALL = [CallPart("f"), ArgumentsPart('{"x": 1}')]
BOTH = [CallPart("f"), ArgumentsPart('{"x": 1, "y": "a, b: {c}"}')]
XML = (
    "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\na, b: {c}\n</parameter>\n"
    "</function>\n</tool_call>"
)
ANSWERS: tuple[tuple[AnswerForm, str, list[Part]], ...] = (
    (QWEN, "<think>\nWell.\n</think>\n\nYes.", [ReasoningPart("\nWell."), TextPart("Yes.")]),
    (QWEN, "<think></think>Yes.", [TextPart("Yes.")]),
    (QWEN, "<think>\nstill", [ReasoningPart("\nstill")]),
    (QWEN, "No <think> here.", [TextPart("No <think> here.")]),
    (
        QWEN,
        '<think>a</think><tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>',
        [ReasoningPart("a"), *CALL],
    ),
    (QWEN, XML, BOTH),
    (QWEN, f"{XML}\n{XML}", BOTH * 2),
    (
        MISTRAL,
        '[THINK]a[/THINK]b[TOOL_CALLS]f[ARGS]{"x": 1}',
        [ReasoningPart("a"), TextPart("b"), *CALL],
    ),
    (MISTRAL, '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]f[CALL_ID]c12345678[ARGS]{"x": 1}', CALL * 2),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}]', CALL),
    (
        GEMMA,
        '<|channel>thought\nhm<channel|><|tool_call>call:f{x:1,y:<|"|>a, b: {c}<|"|>}<tool_call|>',
        [ReasoningPart("\nhm"), *BOTH],
    ),
    (
        GEMMA,
        "<|tool_call>call:f{x:[1,{y:true}]}<tool_call|>",
        [CallPart("f"), ArgumentsPart('{"x": [1, {"y": true}]}')],
    ),
    (
        GRANITE,
        '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}, {"name": "f", "arguments": {"x": 1}}]',
        CALL * 2,
    ),
    (OLMO, "Let me see.<function_calls>f(x=1)</function_calls>", [TextPart("Let me see."), *CALL]),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', CALL),
    (
        HARMONY,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        [ReasoningPart("hm"), TextPart("Yes.")],
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"x": 1}<|call|>',
        [ReasoningPart("a < b"), *CALL],
    ),
    (
        HARMONY,
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>',
        CALL,
    ),
    (HARMONY, "<|channel|>final<|message|>cut", [TextPart("cut")]),
    (HARMONY, "no message", [TextPart("no message")]),
)


def parts(
    form: AnswerForm, text: str, cuts: list[int], prompt: str = "", **asked: bool
) -> list[Part]:
    """What an answer is, pieces of the same kind put together."""
    parser = form.parser(prompt, **{"with_calls": True, **asked})
    found, start = list[Part](), 0
    for stop in sorted(cuts):
        found += parser.read(text[start:stop], is_last=False)
        start = stop
    found += parser.read(text[start:], is_last=True)
    joined = list[Part]()
    for part in found:
        last = joined[-1] if joined else None
        if (
            type(part) is type(last)
            and not isinstance(part, CallPart)
            and not isinstance(last, CallPart)
        ):
            joined[-1] = type(part)(last.text + part.text)  # type: ignore[union-attr]
        else:
            joined.append(part)
    assert parser.num_calls == sum(isinstance(part, CallPart) for part in joined)
    return joined


@pytest.mark.parametrize(("form", "text", "expected"), ANSWERS)
@given(data=st.data())
def test_answers_are_split_wherever_they_are_cut(
    form: AnswerForm, text: str, expected: list[Part], data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert parts(form, text, cuts) == expected
    assert parts(form, text, [*range(len(text))]) == expected


@given(text=st.text(st.sampled_from('<>/|tool_calhnk[]{}":f= \n')), which=st.sampled_from(ANSWERS))
def test_any_text_is_split_alike_in_pieces(
    text: str, which: tuple[AnswerForm, str, list[Part]]
) -> None:
    assert parts(which[0], text, [*range(len(text))]) == parts(which[0], text, [])


def test_a_thought_may_have_begun_in_the_prompt() -> None:
    found = parts(QWEN, "hm\n</think>\nYes.", [3, 7], "<|im_start|>assistant\n<think>\n")
    assert found == [ReasoningPart("hm"), TextPart("Yes.")]


def test_thoughts_and_calls_that_are_not_asked_for_are_text() -> None:
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    assert parts(QWEN, text, [], with_reasoning=False, with_calls=False) == [TextPart(text)]
    assert parts(QWEN, text, [], with_calls=False)[0] == ReasoningPart("a")
    assert parts(HARMONY, "<|channel|>analysis<|message|>a<|end|>", [], with_reasoning=False) == [
        TextPart("a")
    ]


def test_forced_calls_have_the_form_of_the_grammar() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert parts(HARMONY, text, [], is_forced=True) == CALL


def test_arguments_come_while_they_are_written() -> None:
    for form, head in (
        (QWEN, '<tool_call>{"name": "f", "arguments": '),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]"),
    ):
        parser = form.parser("", with_calls=True)
        assert parser.read(f'{head}{{"x', is_last=False) == [CallPart("f"), ArgumentsPart('{"x')]


@pytest.mark.parametrize(
    "text", ["<|tool_call>call:f{x:}<tool_call|>", "<|tool_call>nothing<tool_call|>"]
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parts(GEMMA, text, []) == [TextPart(text)]


def test_texts_in_gemmas_quotes_may_hold_anything() -> None:
    value = 'say: {"a": 1}, [b] \\ "'
    (_, arguments) = parts(GEMMA, f'<|tool_call>call:f{{x:<|"|>{value}<|"|>}}<tool_call|>', [])
    assert isinstance(arguments, ArgumentsPart)
    assert json.loads(arguments.text) == {"x": value}
