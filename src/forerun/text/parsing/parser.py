"""Split an answer, as its text comes, into what the model thinks, says and calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forerun.text.parsing.answer_text import AnswerText
from forerun.text.parsing.call_reader import CallReader, PartReader, final_parts
from forerun.text.parsing.calls import HERMES, CallSyntax, Tools
from forerun.text.parsing.parts import CallPart, ContentPart, Part
from forerun.text.parsing.thought import ReasoningTags, read_thought


class AnswerParser(Protocol):
    """What splits an answer."""

    num_calls: int

    def read(self, text: str, *, is_last: bool, is_cut: bool = False) -> list[Part]:
        """Split more text; `is_last` if none will follow, `is_cut` if a limit has ended it."""
        ...


class PlainParser:
    """Take all of an answer as text."""

    num_calls = 0

    def read(self, text: str, *, is_last: bool, is_cut: bool = False) -> list[Part]:
        """Return the text."""
        return [ContentPart(text)] if text else []


class MarkParser:
    """Split an answer by marks in its text. One that is wholly calls of offered tools needs no marks."""

    def __init__(
        self,
        calls: Sequence[CallSyntax] = (HERMES,),
        thinking: ReasoningTags | None = None,
        *,
        tools: Tools | None = None,
        silent: Sequence[str] = (),
    ) -> None:
        """`calls`: none for an answer that can call nothing. `thinking`: None for a model that does not reason.

        `tools` are those that are offered; `silent` are marks that are left out.
        """
        self.num_calls = 0
        self._text = AnswerText(silent)
        self._parts = _read(self._text, CallReader(self._text, calls, tools or {}), thinking)

    def read(self, text: str, *, is_last: bool, is_cut: bool = False) -> list[Part]:
        """Split more text; `is_last` if none will follow. A cut call is none, if it was not handed on."""
        self._text.push(text, is_last=is_last, is_cut=is_cut)
        parts = final_parts(self._parts)
        self.num_calls += sum(isinstance(part, CallPart) for part in parts)
        return parts


def _read(text: AnswerText, calls: CallReader, thinking: ReasoningTags | None) -> PartReader:
    if thinking is not None:
        yield from read_thought(text, thinking, calls)
    yield from calls.read()
