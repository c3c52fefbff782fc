"""Answers of each family with their parts, and what splits an answer that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.text.parsing.forms import AnswerForm, form_of
from forerun.text.parsing.parser import AnswerParser
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, Part, ReasoningPart

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
    """What an answer in a family's form is."""
    return parts_of(form.parser(prompt, **{"tools": TOOLS, **asked}), text, cuts)


def parts_of(parser: AnswerParser, text: str, cuts: Sequence[int] = ()) -> list[Part]:
    """What an answer is that comes in pieces, parts of the same kind put together."""
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
