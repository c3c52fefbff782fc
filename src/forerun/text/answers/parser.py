"""Split an answer, as its text comes, into what the model thinks, says and calls.

The parser is fed the text in any pieces; a call's arguments are handed on while they are still being written. What is
no call in the family's form stays text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from forerun.text.answers.calls import HERMES, Call, CallSyntax, Tools, read_calls
from forerun.text.answers.json_text import JsonText
from forerun.text.answers.parts import ArgumentsPart, CallPart, ContentPart, Part, ReasoningPart

_BARE_BEGUN = re.compile(
    r'\s*(?:`{0,2}|(?:```\w*\s*)?(?:\[\s*(?:[A-Za-z_][\w.-]*)?|<[a-z]*+=?[\w.-]*+|(?:\[\s*)?\{\s*(?:"\w*)?)?)'
)
"""What an answer of calls alone may begin with before it tells: a fence, a list, a tag, an object."""
_BARE = re.compile(
    r'\s*(?:```\w*\s*)?(?:(?:\[\s*)?\{\s*"(?P<key>\w+)"\s*(?::\s*"(?P<name>[^"]*)")?'
    r"|(?:\[\s*|<function=)(?P<function>[\w.-]+)[(>])"
)
_NAMES = ("name", "tool_name")
_KEYS = (*_NAMES, "function", "arguments", "parameters", "type", "id", "tool_call_id")


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The marks around what a model thinks, which stands before all else."""

    open: str
    close: str
    has_begun: bool = False
    """Whether the prompt ends behind the opening mark."""
    sign: str = ""
    """The mark in the template that tells the family, if it is not `open`."""


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
        """`calls`: none for an answer that can call nothing. `thinking`: None for a model that does not think aloud.

        `tools` are those that are offered; `silent` are marks that are left out.
        """
        self.num_calls = 0
        self._marks = {syntax.open: syntax for syntax in calls}
        self._thinking, self._tools, self._silent = thinking, tools or {}, silent
        self._raw = self._held = ""
        self._syntax: CallSyntax | None = None
        """That of the call that is being read."""
        self._read: Callable[[], list[Part] | None] = self._read_bare
        if thinking is not None:
            self._read = self._read_thought if thinking.has_begun else self._read_first
        self._json = JsonText()
        self._ahead: JsonText | None = None
        """Reads on where a mark stands in the arguments, as far as `_num_seen`."""
        self._num_seen = 0

    def read(self, text: str, *, is_last: bool) -> list[Part]:
        """Split more text; `is_last` if none will follow."""
        return self.push(text) + (self.flush() if is_last else [])

    def push(self, text: str) -> list[Part]:
        """Return the parts that this text makes final; a possible beginning of a mark is held back."""
        self._raw += text
        for mark in self._silent:
            self._raw = self._raw.replace(mark, "")
        kept = len(self._raw) - _num_open(self._raw, self._silent)
        return self._push(kept)

    def _push(self, length: int) -> list[Part]:
        """Split the first letters of what has come."""
        self._held, self._raw = self._held + self._raw[:length], self._raw[length:]
        parts: list[Part] = []
        while (new_parts := self._read()) is not None:
            parts += new_parts
        return _shown(parts)

    def flush(self) -> list[Part]:
        """Return the rest: no text will follow."""
        parts = self._push(len(self._raw))
        if self._read == self._read_arguments:
            parts += self._last_arguments()
        held, self._held = self._held, ""
        if self._read == self._read_call and self._syntax is not None:
            return parts + self._called(held, self._syntax.open + held)
        calls = read_calls(held, self._tools) if self._read == self._read_bare else None
        if calls and all(call.name in self._tools for call in calls):
            return parts + self._parts(calls)
        if self._read == self._read_thought:
            return parts + ([ReasoningPart(held.rstrip())] if held.strip() else [])
        is_text = self._read in (self._read_text, self._read_first, self._read_bare)
        if not is_text or (self.num_calls and not held.strip()):
            return parts
        return parts + ([ContentPart(held)] if held else [])

    def _last_arguments(self) -> list[Part]:
        """Return arguments that have no end: a mark in them was none, and ends them, or they are cut."""
        assert self._syntax is not None
        before, mark, after = self._held.partition(self._syntax.close or "\0")
        part = self._arguments(len(before))
        if not mark:
            return [part]
        self._held, self._read = after, self._read_text
        return [part, ArgumentsPart(self._json.rest()), *self._push(0)]

    def _read_first(self) -> list[Part] | None:
        """Tell whether the answer begins with a thought."""
        assert self._thinking is not None
        begun, then = self._held.lstrip(), (self._read_thought, self._read_gap)
        marks = (self._thinking.open, self._thinking.close)  # the second alone: no thought
        for mark, read in zip(marks, then, strict=True):
            if begun.startswith(mark):
                self._held, self._read = begun[len(mark) :], read
                return []
        if any(mark.startswith(begun) for mark in marks):
            return None
        self._read = self._read_bare
        return []

    def _read_thought(self) -> list[Part] | None:
        assert self._thinking is not None
        text, mark = self._up_to([self._thinking.close])
        if mark:
            self._read = self._read_gap
        return [ReasoningPart(text)] if text or mark else None

    def _read_gap(self) -> list[Part] | None:
        """Leave out the empty lines behind a thought."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        self._read = self._read_bare
        return []

    def _read_bare(self) -> list[Part] | None:
        """Hold an answer back that may be calls without marks; whether it is, its end tells."""
        if self._tools and self._marks and self._may_be_bare():
            return None
        self._read = self._read_text
        return []

    def _may_be_bare(self) -> bool:
        if (found := _BARE.match(self._held)) is None:
            return _BARE_BEGUN.fullmatch(self._held) is not None
        key, name, function = found["key"], found["name"], found["function"]
        if function is not None:
            return function in self._tools
        is_named = name is None or key not in _NAMES or name in self._tools
        return key in self._tools or (key in _KEYS and is_named)

    def _read_text(self) -> list[Part] | None:
        text, mark = self._up_to([*self._marks])
        if mark:
            self._syntax, self._read = self._marks[mark], self._read_call
        return [ContentPart(text)] if text or mark else None

    def _up_to(self, marks: Sequence[str]) -> tuple[str, str]:
        """Take what is final before the first of some marks, without spaces at its end, and that mark.

        Where none is there, the possible beginning of one is held back.
        """
        found = [(at, -len(mark), mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        if found:
            at, _, mark = min(found)
            text, self._held = self._held[:at].rstrip(), self._held[at + len(mark) :]
            return text, mark
        text = self._held[: len(self._held) - _num_open(self._held, marks)]
        text = text.rstrip() if marks else text
        self._held = self._held[len(text) :]
        return text, ""

    def _read_call(self) -> list[Part] | None:
        assert self._syntax is not None
        if (begun := self._syntax.begun(self._held)) is not None:
            name, own, start = begun
            self._held, self._read = self._held[start:], self._read_arguments
            self._json = JsonText()
            self.num_calls += 1
            return [_call_part(name, own)]
        if not self._syntax.close:
            return None
        body, mark, after = self._held.partition(self._syntax.close)
        if not mark:
            return None
        self._held, self._read = after, self._read_text
        return self._called(body, self._syntax.open + body + mark)

    def _read_arguments(self) -> list[Part] | None:
        """Hand arguments on. A mark may stand in a text of theirs; whether it does, the object's end tells."""
        assert self._syntax is not None
        close = self._syntax.close
        kept = len(self._held) - _num_open(self._held, [close])
        if close and close in self._held:
            self._ahead = self._ahead or copy(self._json)
            length = self._ahead.push(self._held[self._num_seen :])[1]
            self._num_seen = len(self._held)
            if not length:
                return None
            kept = self._num_seen
        if not kept:
            return None
        self._ahead, self._num_seen = None, 0
        return [self._arguments(kept)]

    def _arguments(self, kept: int) -> ArgumentsPart:
        """Take as much of the arguments as there is, of so many characters."""
        arguments, length = self._json.push(self._held[:kept])
        self._held = self._held[length or kept :]
        if self._json.is_complete:
            self._read = self._read_end
        return ArgumentsPart(arguments)

    def _read_end(self) -> list[Part] | None:
        assert self._syntax is not None
        if not self._syntax.close:
            self._read = self._read_text
            return []
        others, mark, after = self._held.partition(self._syntax.close)
        if not mark:
            return None
        self._held, self._read = after, self._read_text
        return self._parts(read_calls(others.strip().removeprefix("}"), self._tools) or [])

    def _called(self, body: str, whole: str) -> list[Part]:
        """Return the calls in a body that is complete; the whole as text if it holds none."""
        calls = read_calls(body, self._tools) or read_calls(whole, self._tools)
        return self._parts(calls) if calls else [ContentPart(whole)]

    def _parts(self, calls: Sequence[Call]) -> list[Part]:
        self.num_calls += len(calls)
        return [
            part
            for name, arguments, own in calls
            for part in (_call_part(name, own), ArgumentsPart(arguments))
        ]


def _call_part(name: str, own: str | None) -> CallPart:
    return CallPart(name) if own is None else CallPart(name, own)


def _shown(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if isinstance(part, CallPart) or part.text]


def _num_open(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    longest = max(map(len, marks), default=1) - 1
    return next(
        (
            n
            for n in range(min(longest, len(text)), 0, -1)
            if any(mark.startswith(text[-n:]) for mark in marks)
        ),
        0,
    )
