"""Which form a model's answers have, by what its chat template writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from forerun.text.answers import calls
from forerun.text.answers.calls import CallSyntax
from forerun.text.answers.harmony import HarmonyParser
from forerun.text.answers.parser import AnswerParser, MarkParser, PlainParser, Thinking

_THINK = Thinking("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How a family writes what it thinks and calls."""

    calls: CallSyntax = calls.HERMES
    thinking: Thinking | None = None
    has_special_marks: bool = False
    """Whether marks are control tokens, which are no part of a text unless it is asked for."""
    is_harmony: bool = False

    def begun(self, prompt: str) -> Thinking | None:
        """Return the thought that a prompt has begun; None if it has not."""
        if self.thinking is None or not prompt.rstrip().endswith(self.thinking.open):
            return None
        return replace(self.thinking, has_begun=True)

    def parser(
        self, prompt: str, *, with_calls: bool, with_reasoning: bool = True, is_forced: bool = False
    ) -> AnswerParser:
        """Return what splits an answer to a prompt. `is_forced`: a grammar made calls, in Hermes' form."""
        if is_forced:
            return MarkParser(thinking=self.begun(prompt) if with_reasoning else None)
        if self.is_harmony:
            return HarmonyParser(with_calls=with_calls, with_reasoning=with_reasoning)
        thinking = self.thinking if with_reasoning else None
        if thinking is not None:
            thinking = self.begun(prompt) or thinking
        if thinking is None and not with_calls:
            return PlainParser()
        return MarkParser(self.calls if with_calls else None, thinking)


@lru_cache(maxsize=8)  # every request asks
def form_of(template: str | None) -> AnswerForm:
    """Return the form of a model with this chat template; Hermes' if it says nothing of tools."""
    text = template or ""
    thinking = _THINK if "<think>" in text else None
    if "<|channel|>" in text and "<|start|>" in text:
        return AnswerForm(has_special_marks=True, is_harmony=True)
    if "[TOOL_CALLS]" in text:
        thinking = Thinking("[THINK]", "[/THINK]") if "[THINK]" in text else thinking
        return AnswerForm(calls.MISTRAL, thinking, has_special_marks=True)
    if "<|tool_call>" in text:
        return AnswerForm(calls.GEMMA, Thinking("<|channel>thought", "<channel|>"), True)
    if "<tool_call>" in text:
        return AnswerForm(calls.HERMES, thinking)
    if "<|tool_call|>" in text:
        return AnswerForm(calls.GRANITE, thinking, has_special_marks=True)
    if "<function_calls>" in text:
        return AnswerForm(calls.OLMO, thinking)
    if "<|python_tag|>" in text:
        return AnswerForm(calls.LLAMA, thinking, has_special_marks=True)
    return AnswerForm(calls.HERMES, thinking)
