"""What models think, say and call is told apart in the form of each family, however the text comes in pieces."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.text.answers.forms import AnswerForm, form_of
from forerun.text.answers.json_text import JsonText
from forerun.text.answers.parts import ArgumentsPart, CallPart, ContentPart, Part, ReasoningPart

QWEN = form_of("{% if x %}<think>{% endif %}<tool_call>")
MISTRAL = form_of("[THINK][TOOL_CALLS]")
GEMMA = form_of("<|tool_call><|channel>thought")
HARMONY = form_of("<|start|>assistant<|channel|>")
GRANITE, OLMO, LLAMA = (
    form_of("<|tool_call|>"),
    form_of("<function_calls>"),
    form_of("<|python_tag|>"),
)
LFM2, PHI, KIMI, DEEPSEEK, GLM, MINIMAX, COMMAND = map(
    form_of,
    (
        *("<|tool_call_start|>", "<|/tool_call|>", "<|tool_call_begin|>", "<｜tool▁call▁begin｜>"),
        *("<tool_call><arg_key>", "<minimax:tool_call>", "<|START_THINKING|><|START_ACTION|>"),
    ),
)
KIMI_K3, MINIMAX_M1, MINIMAX_M3, GIGACHAT, COMMAND_PLUS = map(
    form_of,
    (
        *("<|end_of_msg|><|open|>", "<tool_calls>", "<mm:think>]<]minimax[>[", "<|role_sep|>"),
        r"'\nAction:\n```json\n[\n'",
    ),
)
HUNYUAN, SOLAR, MUSE = map(form_of, ("':opensource'", "<|tool_call:begin|>", "<atem:invoke"))
TOOLS = {
    "f": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}},
    "g": {"type": "object", "properties": {"z": {"type": "object"}}},
}
CALL = [CallPart("f"), ArgumentsPart('{"x": 1}')]
BOTH = [CallPart("f"), ArgumentsPart('{"x": 1, "y": "a, b: {c}"}')]
XML = (
    "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\na, b: {c}\n</parameter>\n"
    "</function>\n</tool_call>"
)
ANSWERS: tuple[tuple[AnswerForm, str, list[Part]], ...] = (
    (QWEN, "<think>\nWell.\n</think>\n\nYes.", [ReasoningPart("\nWell."), ContentPart("Yes.")]),
    (QWEN, "<think></think>Yes.", [ContentPart("Yes.")]),
    (QWEN, "<think>\nstill", [ReasoningPart("\nstill")]),
    (QWEN, "No <think> here.", [ContentPart("No <think> here.")]),
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
        [ReasoningPart("a"), ContentPart("b"), *CALL],
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
    (
        OLMO,
        "Let me see.<function_calls>f(x=1)</function_calls>",
        [ContentPart("Let me see."), *CALL],
    ),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', CALL),
    (LLAMA, '{"name": "f", "parameters": {"x": 1}}', CALL),
    (LLAMA, "[f(x=1), f(x=1)]", CALL * 2),
    (QWEN, '{"name": "f", "arguments": {"x": 1}}', CALL),
    (QWEN, '```json\n{"name": "f", "arguments": {"x": 1}}\n```', CALL),
    (
        QWEN,
        '<think>a</think>\n\n[{"name": "f", "arguments": {"x": 1}}]',
        [ReasoningPart("a"), *CALL],
    ),
    (
        QWEN,
        '```json\n{"name": "f", "arguments": {"x": 1}}\n```\n```json\n{"name": "f", "arguments": {"x": 1}}\n```',
        CALL * 2,
    ),
    (QWEN, XML.replace("<tool_call>\n", ""), BOTH),
    (QWEN, '{"type": "function", "function": {"name": "f", "parameters": {"x": 1}}}', CALL),
    (
        LFM2,
        '<|tool_call_start|>[f(x=1, y="a, b: {c}")]<|tool_call_end|>Done.',
        [*BOTH, ContentPart("Done.")],
    ),
    (LFM2, "<|tool_call_start|>[f(1)]<|tool_call_end|>", CALL),
    (PHI, '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]<|/tool_call|>', CALL),
    (
        KIMI,
        'Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        [ContentPart("Well."), *CALL],
    ),
    (
        DEEPSEEK,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>'
        'function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        CALL * 2,
    ),
    (GLM, "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", CALL),
    (GLM, "<tool_call>f\n</tool_call>", [CallPart("f"), ArgumentsPart("{}")]),
    (
        MINIMAX,
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">1</parameter>\n'
        '<parameter name="y">a, b: {c}</parameter>\n</invoke>\n</minimax:tool_call>',
        BOTH,
    ),
    (
        COMMAND,
        "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n"
        '{"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}\n]<|END_ACTION|>',
        [ReasoningPart("hm"), *CALL],
    ),
    (
        form_of("｜DSML｜"),
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="false">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        CALL,
    ),
    (
        form_of("<function name="),
        '<function name="f"><param name="x">1</param><param name="y">a, b: {c}</param></function>',
        BOTH,
    ),
    (
        form_of("<function name="),
        '<function name="f"><param name="y"><![CDATA[<b>1</b>]]></param></function>',
        [CallPart("f"), ArgumentsPart('{"y": "<b>1</b>"}')],
    ),
    (
        KIMI_K3,
        "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>Well.<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="x" type="number"<|sep|>1'
        '<|close|>argument<|sep|><|open|>argument key="y" type="string"<|sep|>a, b: {c}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        [ReasoningPart("hm"), ContentPart("Well."), *BOTH],
    ),
    (
        MINIMAX_M3,
        '</mm:think>Well.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<x>1]<]minimax[>[</x>'
        "]<]minimax[>[<y>a, b: {c}]<]minimax[>[</y>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        [ContentPart("Well."), *BOTH],
    ),
    (
        MINIMAX_M3,
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="g">]<]minimax[>[<x>]<]minimax[>[<a>true]<]minimax[>[</a>'
        "]<]minimax[>[<b>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[<item><y>]<]minimax[>[</item>"
        ']<]minimax[>[</b>]<]minimax[>[</x>]<]minimax[>[</invoke>]<]minimax[>[<invoke name="f">]<]minimax[>[</invoke>'
        "]<]minimax[>[</tool_call>",
        [
            *(CallPart("g"), ArgumentsPart('{"x": {"a": true, "b": [1, "<y>"]}}')),
            *(CallPart("f"), ArgumentsPart("{}")),
        ],
    ),
    (
        GIGACHAT,
        'Well.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {"x": 1}}',
        [ContentPart("Well."), *CALL],
    ),
    (
        COMMAND_PLUS,
        'Well.\nAction:\n```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {"x": 1}\n    }\n]```\n',
        [ContentPart("Well."), *CALL],
    ),
    (
        MINIMAX_M1,
        '<tool_calls>\n{"name": "f", "arguments": {"x": 1}}\n{"name": "f", "arguments": {"x": 1}}\n</tool_calls>',
        CALL * 2,
    ),
    (
        form_of("<seed:tool_call>"),
        "<seed:tool_call>\n<function=g>\n<parameter=z>{'a': True, 'b': None}</parameter>\n</function>\n"
        "</seed:tool_call>",
        [CallPart("g"), ArgumentsPart('{"z": {"a": true, "b": null}}')],
    ),
    (
        HUNYUAN,
        "<think:opensource>hm</think:opensource><tool_calls:opensource>\n<tool_call:opensource>f"
        "<tool_sep:opensource>\n<arg_key:opensource>x</arg_key:opensource>\n<arg_value:opensource>1"
        "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        [ReasoningPart("hm"), *CALL],
    ),
    (
        SOLAR,
        "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f"
        '<|tool_call:args|>{"x": 1}<|tool_call:end|>',
        [ReasoningPart("hm"), *CALL],
    ),
    (SOLAR, "<|think|><|end|><|begin|>assistant<|content|>Yes.", [ContentPart("Yes.")]),
    (
        MUSE,
        ' to=self<|message|>hm<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
        '<atem:parameter name="x">1</atem:parameter>\n<atem:parameter name="y">a, b: {c}</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>",
        [ReasoningPart("hm"), *BOTH],
    ),
    (MUSE, " to=user<|message|>Yes.", [ContentPart("Yes.")]),
    (COMMAND, "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", [ContentPart("Yes.")]),
    (
        HARMONY,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        [ReasoningPart("hm"), ContentPart("Yes.")],
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
    (HARMONY, "<|channel|>final<|message|>cut", [ContentPart("cut")]),
    (HARMONY, "no message", [ContentPart("no message")]),
)


def parts(
    form: AnswerForm, text: str, cuts: list[int], prompt: str = "", **asked: Any
) -> list[Part]:
    """What an answer is, pieces of the same kind put together."""
    parser = form.parser(prompt, **{"tools": TOOLS, **asked})
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


def test_arguments_come_while_they_are_written() -> None:
    for form, head in (
        (QWEN, '<tool_call>{"name": "f", "arguments": '),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]"),
    ):
        parser = form.parser("", tools=TOOLS)
        assert parser.read(f'{head}{{"x', is_last=False) == [CallPart("f"), ArgumentsPart('{"x')]


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


def test_text_that_cannot_be_a_call_is_not_held_back() -> None:
    for text in ("Hello", '{"name": "Bob"', '{"ok"', "```python\np", "[1"):
        assert QWEN.parser("", tools=TOOLS).read(text, is_last=False) == [ContentPart(text)]


def test_the_vocabulary_tells_a_family_whose_template_writes_no_calls() -> None:
    form = form_of("{{ tools }}", {"<|tool_call_start|>": 0}.get)
    assert parts(form, "<|tool_call_start|>[f(x=1)]<|tool_call_end|>", []) == CALL
    assert form_of("<tool_call>", {"<|python_tag|>": 0}.get).calls.open == "<tool_call>"


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
