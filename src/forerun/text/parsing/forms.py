"""Which form a model's answers have, by the marks that its chat template writes or its vocabulary has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from forerun.core.params import ThoughtMarks
from forerun.text.parsing.calls import HERMES, CallSyntax, Tools
from forerun.text.parsing.families import CALLS, HARMONY_CALLS, HERMES_CALLS, THOUGHTS, WRITTEN
from forerun.text.parsing.harmony import FINAL, HarmonyParser
from forerun.text.parsing.parser import AnswerParser, MarkParser, PlainParser
from forerun.text.parsing.thought import ReasoningTags
from forerun.text.parsing.written_calls import WrittenCalls

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
    written = (calls for sign, calls in WRITTEN.items() if sign in text)
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
