"""Split an answer, as its text comes, into what the model thinks, says and calls.

The parser is fed the text in any pieces; a call's arguments are handed on while they are still being written. What is
no call in the family's form stays text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from forerun.text.answers.calls import HERMES, CallSyntax
from forerun.text.answers.parts import ArgumentsPart, CallPart, Part, ReasoningPart, TextPart


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around what a model thinks, which stands before all else."""

    open: str
    close: str
    has_begun: bool = False
    """Whether the prompt ends behind the opening mark."""


class AnswerParser(Protocol):
    """What splits an answer."""

    num_calls: int

    def read(self, text: str, *, is_last: bool) -> list[Part]:
        """Split more text; `is_last` if none will follow."""
        ...


class PlainParser:
    """Take all of an answer as text."""

    num_calls = 0

    def read(self, text: str, *, is_last: bool) -> list[Part]:
        """Return the text."""
        return [TextPart(text)] if text else []


class MarkParser:
    """Split an answer by marks in its text."""

    def __init__(self, calls: CallSyntax | None = HERMES, thinking: Thinking | None = None) -> None:
        """`calls`: None for an answer that can call nothing. `thinking`: None for a model that does not think aloud."""
        self.num_calls = 0
        self._calls, self._thinking, self._held = calls, thinking, ""
        self._read: Callable[[], list[Part] | None] = self._read_text
        if thinking is not None:
            self._read = self._read_thought if thinking.has_begun else self._read_first
        self._scanner = _ObjectScanner()

    def read(self, text: str, *, is_last: bool) -> list[Part]:
        """Split more text; `is_last` if none will follow."""
        return self.push(text) + (self.flush() if is_last else [])

    def push(self, text: str) -> list[Part]:
        """Return the parts that this text makes final; a possible beginning of a mark is held back."""
        self._held += text
        parts: list[Part] = []
        while (new_parts := self._read()) is not None:
            parts += new_parts
        return [part for part in parts if isinstance(part, CallPart) or part.text]

    def flush(self) -> list[Part]:
        """Return the rest: no text will follow."""
        held, self._held = self._held, ""
        if self._read == self._read_call and self._calls is not None:
            return self._called(held, self._calls.open + held)
        if self._read == self._read_thought:
            return [ReasoningPart(held.rstrip())] if held.strip() else []
        is_text = self._read in (self._read_text, self._read_first)
        if not is_text or (self.num_calls and not held.strip()):
            return []
        return [TextPart(held)] if held else []

    def _read_first(self) -> list[Part] | None:
        """Tell whether the answer begins with a thought."""
        assert self._thinking is not None
        mark, begun = self._thinking.open, self._held.lstrip()
        if begun.startswith(mark):
            self._held, self._read = begun[len(mark) :], self._read_thought
            return []
        if mark.startswith(begun):
            return None
        self._read = self._read_text
        return []

    def _read_thought(self) -> list[Part] | None:
        assert self._thinking is not None
        text = self._up_to(self._thinking.close, self._read_gap)
        return None if text is None else [ReasoningPart(text)]

    def _read_gap(self) -> list[Part] | None:
        """Leave out the empty lines behind a thought."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        self._read = self._read_text
        return []

    def _read_text(self) -> list[Part] | None:
        if self._calls is None:
            held, self._held = self._held, ""
            return [TextPart(held)] if held else None
        text = self._up_to(self._calls.open, self._read_call)
        return None if text is None else [TextPart(text)]

    def _up_to(self, mark: str, behind: Callable[[], list[Part] | None]) -> str | None:
        """Take what is final before a mark, without spaces at its end; None if there is nothing.

        Where the mark is there, `behind` goes on reading; else its possible beginning is held back.
        """
        before, found, after = self._held.partition(mark)
        if found:
            self._held, self._read = after, behind
            return before.rstrip()
        text = before[: len(before) - _num_open(before, mark)].rstrip()
        self._held = before[len(text) :]
        return text or None

    def _read_call(self) -> list[Part] | None:
        assert self._calls is not None
        if (begun := self._calls.begun(self._held)) is not None:
            name, start = begun
            self._held, self._read = self._held[start:], self._read_arguments
            self._scanner = _ObjectScanner()
            self.num_calls += 1
            return [CallPart(name)]
        if not self._calls.close:
            return None
        body, mark, after = self._held.partition(self._calls.close)
        if not mark:
            return None
        self._held, self._read = after, self._read_text
        return self._called(body, self._calls.open + body + mark)

    def _read_arguments(self) -> list[Part] | None:
        if not self._held:
            return None
        length = self._scanner.push(self._held)
        arguments, self._held = self._held[:length], self._held[length:]
        if self._scanner.is_complete:
            self._read = self._read_end
        return [ArgumentsPart(arguments)]

    def _read_end(self) -> list[Part] | None:
        assert self._calls is not None
        if self._calls.close:
            _, mark, after = self._held.partition(self._calls.close)
            if not mark:
                return None
            self._held = after
        self._read = self._read_text
        return []

    def _called(self, body: str, whole: str) -> list[Part]:
        """Return the calls in a body that is complete; the whole as text if it holds none."""
        assert self._calls is not None
        calls = self._calls.read(body)
        if calls is None:
            return [TextPart(whole)]
        self.num_calls += len(calls)
        return [
            part for name, arguments in calls for part in (CallPart(name), ArgumentsPart(arguments))
        ]


class _ObjectScanner:
    """Finds the end of a JSON object in a text that comes in pieces."""

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> int:
        """Return how many of the characters belong to the object."""
        for i, sign in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = sign == "\\", sign != '"'
            elif sign == '"':
                self._in_string = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    self.is_complete = True
                    return i + 1
        return len(text)


def _num_open(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
