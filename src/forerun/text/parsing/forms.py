"""Which form a model's answers have, by the marks that its chat template writes or its vocabulary has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from forerun.core.params import ThoughtMarks
from forerun.text.parsing.calls import (
    CLOSE,
    HERMES,
    HERMES_CALLS,
    NAMED_HEAD,
    CallSyntax,
    Tools,
    WrittenCalls,
)
from forerun.text.parsing.harmony import ARGUMENTS, CALL, FINAL, HarmonyParser
from forerun.text.parsing.parser import AnswerParser, MarkParser, PlainParser, ReasoningTags
from forerun.text.parsing.tags import M3_MARK

CALLS = (
    CallSyntax("[TOOL_CALLS]", "", NAMED_HEAD),  # Mistral
    CallSyntax("<|tool_call>", "<tool_call|>"),  # Gemma 4
    CallSyntax("<start_function_call>", "<end_function_call>"),  # FunctionGemma
    CallSyntax(
        *("<|tool_call_begin|>", "<|tool_call_end|>", NAMED_HEAD),  # Kimi K2
        silent=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    CallSyntax(
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", NAMED_HEAD),  # DeepSeek R1, V3, V3.1
        silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    CallSyntax(
        *("<｜DSML｜invoke", "</｜DSML｜invoke>", None, "｜DSML｜"),  # DeepSeek V3.2, V4
        silent=tuple(
            f"<{slash}｜DSML｜{name}>"
            for name in ("function_calls", "tool_calls")
            for slash in ("", "/")
        ),
    ),
    CallSyntax("<minimax:tool_call>", "</minimax:tool_call>"),  # MiniMax M2
    CallSyntax("<seed:tool_call>", "</seed:tool_call>"),  # Seed-OSS
    CallSyntax("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    CallSyntax("<|tools_prefix|>", "<|tools_suffix|>"),  # Apertus
    CallSyntax(
        *("<|START_ACTION|>", "<|END_ACTION|>"),  # Command
        silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    CallSyntax("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    CallSyntax("<function=", CLOSE, None),  # Qwen3-Coder, which forgets the mark before it
    CallSyntax("<function name=", "</function>", None),  # MiniCPM5
    CallSyntax("<|function_call|>", "", None),  # GigaChat 3.1
    CallSyntax(
        *("function call<|role_sep|>", "", None, "<|role_sep|>"),  # GigaChat 3
        silent=("<|message_sep|>",),
    ),
    CallSyntax(
        *("<|open|>call tool=", "<|close|>call<|sep|>", None, "<|end_of_msg|>"),  # Kimi K3
        silent=tuple(
            f"<|{what}|>{name}<|sep|>"
            for name in ("response", "tools", "message")
            for what in ("open", "close")
        ),
    ),
    CallSyntax(f"{M3_MARK}<tool_call>", f"{M3_MARK}</tool_call>", None, M3_MARK),  # MiniMax M3
    CallSyntax("Action:", "", None, r"Action:\n```json"),  # Command R+
    CallSyntax(
        *("<tool_call:opensource>", "</tool_call:opensource>", None, ":opensource"),  # Hunyuan 3
        silent=("<tool_calls:opensource>", "</tool_calls:opensource>"),
    ),
    CallSyntax(
        *("<|tool_call:begin|>", "<|tool_call:end|>", NAMED_HEAD),  # Solar
        silent=("<|begin|>assistant", "<|content|>", "<|tool_calls|>"),
    ),
    CallSyntax(
        *("to=", "</atem:function_calls>", None, "<atem:"),  # Muse: a message to the function
        silent=(" to=user<|message|>", "<|start|>assistant"),
    ),
    CallSyntax("<tool_calls>", "</tool_calls>"),  # MiniMax M1, Hunyuan, Jamba, Apriel
    CallSyntax("<function_calls>", "</function_calls>"),  # OLMo 3
    CallSyntax("<|tool_call|>", "<|/tool_call|>", sign="<|/tool_call|>"),  # Phi-4
    CallSyntax("<|tool_call|>", "", None),  # Granite 3
    CallSyntax("<|python_tag|>", "", None),  # Llama 3
    HERMES,  # beside which it is always read
)
"""The first whose sign stands in the template, else in the vocabulary, is a model's own."""
WRITTEN = {
    "[CALL_ID]": "«[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$args»",  # Mistral Small 3.2
    "[ARGS]": "«[TOOL_CALLS]$name[ARGS]$args»",  # Mistral since
    "[TOOL_CALLS]": '[TOOL_CALLS][«{"name": "$name", "arguments": $args, "id": "$id"}¦, »]',
    "<|tool_call>": """«<|tool_call>call:$name{«$key:$<|"|>value¦,»}<tool_call|>»""",
    "<start_function_call>": "«<start_function_call>call:$name{«$key:$<escape>value¦,»}<end_function_call>»",
    "<|tool_call_begin|>": "<|tool_calls_section_begin|>«<|tool_call_begin|>functions.$name:$0"
    "<|tool_call_argument_begin|>$args<|tool_call_end|>»<|tool_calls_section_end|>",
    "<｜tool▁call▁begin｜>": "<｜tool▁calls▁begin｜>«<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$args<｜tool▁call▁end｜>»"
    "<｜tool▁calls▁end｜>",
    "｜DSML｜": '<｜DSML｜tool_calls>\n«<｜DSML｜invoke name="$name">\n«<｜DSML｜parameter name="$key" '
    'string="$is_text">$value</｜DSML｜parameter>\n»</｜DSML｜invoke>\n»</｜DSML｜tool_calls>',
    "<minimax:tool_call>": '<minimax:tool_call>\n«<invoke name="$name">\n«<parameter name="$key">$value</parameter>\n»'
    "</invoke>\n»</minimax:tool_call>",
    "<seed:tool_call>": "«<seed:tool_call>\n<function=$name>\n«<parameter=$key>$word</parameter>\n»</function>\n"
    "</seed:tool_call>¦\n»",
    "<TOOLCALL>": '<TOOLCALL>[«{"name": "$name", "arguments": $args}¦, »]</TOOLCALL>',
    "<|tools_prefix|>": '<|tools_prefix|>[«{"$name": $args}¦, »]<|tools_suffix|>',
    "<|START_ACTION|>": '<|START_ACTION|>[\n«    {"tool_call_id": "$0", "tool_name": "$name", "parameters": $args}¦,\n»'
    "\n]<|END_ACTION|>",
    "<|tool_call_start|>": "<|tool_call_start|>[«$name(«$key=$'word¦, »)¦, »]<|tool_call_end|>",
    "<function=": "«<tool_call>\n<function=$name>\n«<parameter=$key>\n$word\n</parameter>\n»</function>\n"
    "</tool_call>¦\n»",
    "<function name=": '«<function name="$name">«<param name="$key">$value</param>»</function>»',
    "<|function_call|>": '<|function_call|>{"name": "$name", "arguments": $args}',  # GigaChat 3.1
    "<|end_of_msg|>": '<|open|>tools<|sep|>«<|open|>call tool="$name" index="$1"<|sep|>«<|open|>argument key="$key" '
    'type="$type"<|sep|>$value<|close|>argument<|sep|>»<|close|>call<|sep|>»<|close|>tools<|sep|>',
    M3_MARK: f'{M3_MARK}<tool_call>\n«{M3_MARK}<invoke name="$name">«{M3_MARK}<$key>$value{M3_MARK}</$key>»'
    f"{M3_MARK}</invoke>\n»{M3_MARK}</tool_call>",
    ":opensource": "<tool_calls:opensource>«\n<tool_call:opensource>$name<tool_sep:opensource>«\n<arg_key:opensource>"
    "$key</arg_key:opensource>\n<arg_value:opensource>$value</arg_value:opensource>»\n</tool_call:opensource>»\n"
    "</tool_calls:opensource>",
    "<|tool_call:begin|>": "<|tool_calls|>«<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$args"
    "<|tool_call:end|>»",
    "<tool_calls>": '<tool_calls>[«{"name": "$name", "arguments": $args}¦, »]</tool_calls>',
    "<|python_tag|>": '{"name": "$name", "parameters": $args}',  # Llama 3
    "{function-name}\n": "«<tool_call>$name\n«<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n»"
    "</tool_call>¦\n»",
    "<arg_key>": "«<tool_call>$name«<arg_key>$key</arg_key><arg_value>$value</arg_value>»</tool_call>»",  # GLM 4.7
}
"""By what a template has in it: how calls are written (`WrittenCalls.of`) that must be made; the first that it has."""
HARMONY_CALLS = replace(WrittenCalls.of(f"$name{ARGUMENTS}$args"), open=CALL)
THOUGHTS = (
    ReasoningTags("[THINK]", "[/THINK]"),  # Mistral
    ReasoningTags("<|channel>thought", "<channel|>"),  # Gemma 4
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ReasoningTags("<mm:think>", "</mm:think>"),  # MiniMax M3
    ReasoningTags(
        "<|open|>think<|sep|>", "<|close|>think<|sep|>", sign="<|end_of_msg|>"
    ),  # Kimi K3
    ReasoningTags("<think:opensource>", "</think:opensource>", sign=":opensource"),  # Hunyuan 3
    ReasoningTags("<|think|>", "<|end|>", sign="<|tool_call:begin|>"),  # Solar
    ReasoningTags("to=self<|message|>", "<|eom|>", sign="<atem:"),  # Muse
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("Here is my thought process:", "Here is my response:"),  # Granite 3
)

_START = "<|start|>"
_HARMONY = ("<|channel|>", _START)
_SAID = ("<|channel|>final", "<|channel|>commentary")
"""What ends gpt-oss' thoughts."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How a family writes what it thinks and calls."""

    calls: CallSyntax = HERMES
    thinking: ReasoningTags | None = None
    is_harmony: bool = False
    written: WrittenCalls = HERMES_CALLS
    """How calls are written that must be made, if the template reads tools."""

    def begun(self, prompt: str) -> ReasoningTags | None:
        """Return the thought that a prompt has begun, as gpt-oss' all have; None if it has not."""
        if self.is_harmony:
            return ReasoningTags("", FINAL, True) if prompt.endswith("<|start|>assistant") else None
        if self.thinking is None or not prompt.rstrip().endswith(self.thinking.open):
            return None
        return replace(self.thinking, has_begun=True)

    def stop_behind(self, prompt: str) -> ThoughtMarks | None:
        """Return the marks of the thought behind which an answer to the prompt begins; None where there is none."""
        if self.is_harmony:
            has_begun = prompt.rfind(_START) >= prompt.rfind("<|message|>")
            return ThoughtMarks("", _SAID, has_begun, again=_START)
        if self.thinking is None:
            return None
        return ThoughtMarks(
            self.thinking.open, (self.thinking.close,), self.begun(prompt) is not None
        )

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks. Those that are control tokens are no part of a text unless it is asked for."""
        if self.is_harmony:
            return _HARMONY
        thinking = () if self.thinking is None else (self.thinking.open, self.thinking.close)
        return tuple(filter(None, (self.calls.open, self.calls.close, *thinking)))

    def spelled(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Write calls as the family does."""
        if self.written is not HERMES_CALLS or self.calls is HERMES:
            return self.written.spelled(calls)
        objects = [{"name": name, "arguments": arguments} for name, arguments in calls]
        return f"{self.calls.open}{json.dumps(objects, ensure_ascii=False)}{self.calls.close}"

    def parser(self, prompt: str, *, tools: Tools, with_reasoning: bool = True) -> AnswerParser:
        """Return what splits an answer to a prompt that offers tools."""
        if self.is_harmony:
            # The prompt may end within a message, whose text the answer goes on with.
            in_text = prompt.rfind("<|message|>") > prompt.rfind("<|start|>")
            return HarmonyParser(bool(tools), with_reasoning, in_text=in_text, tools=tools)
        thinking = self.thinking if with_reasoning else None
        if thinking is not None:
            thinking = self.begun(prompt) or thinking
        if not (thinking or tools or self.calls.silent):
            return PlainParser()
        syntaxes = tuple(dict.fromkeys((self.calls, HERMES))) if tools else ()
        return MarkParser(syntaxes, thinking, tools=tools, silent=self.calls.silent)


def form_of(
    template: str | None, token_id: Callable[[str], int | None] = lambda text: None
) -> AnswerForm:
    """Return the form of a model with this chat template, and with these tokens; Hermes' if neither says anything."""
    text = template or ""
    if all(mark in text for mark in _HARMONY):
        return AnswerForm(is_harmony=True, written=HARMONY_CALLS)
    signs = {each: each.sign or each.open for each in CALLS}
    own = [each for each, sign in signs.items() if sign in text]
    own += [each for each, sign in signs.items() if token_id(sign) is not None]
    thinking = (one for one in THOUGHTS if (one.sign or one.open) in text or one.close in text)
    written = (WrittenCalls.of(calls) for sign, calls in WRITTEN.items() if sign in text)
    own = [*own, HERMES]
    return AnswerForm(own[0], next(thinking, None), written=next(written, HERMES_CALLS))


class Special(Protocol):
    """A tokenizer that knows its control tokens."""

    def encode(self, text: str, *, bos: bool | None = None) -> list[int]:
        """Return the token ids of a text."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Tell a control token."""
        ...


def has_special_marks(form: AnswerForm, tokenizer: Special) -> bool:
    """Return whether a form's marks have control tokens, which a text leaves out unless it is asked for them."""
    ids = (i for mark in form.marks for i in tokenizer.encode(mark, bos=False))
    return any(map(tokenizer.is_special, ids))


def without_thought(text: str, marks: ReasoningTags | None) -> str:
    """End a prompt behind an empty thought, for a model whose template has no switch."""
    begun = text.rstrip()
    if marks is None or begun.endswith(marks.close):
        return text
    before = begun if begun.endswith(marks.open) else text + marks.open
    return f"{before}\n\n{marks.close}\n\n"


def with_thought(text: str, marks: ReasoningTags | None) -> str:
    """End a prompt in a thought, for a model whose template leaves its beginning to it."""
    if marks is None or text.rstrip().endswith((marks.open, marks.close)):
        return text
    return f"{text}{marks.open}\n"
