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

from forerun.text.parsing.calls import HERMES, Call, CallSyntax, Tools, is_whole, read_calls
from forerun.text.parsing.json_text import JsonText
from forerun.text.parsing.loose import resolved
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, Part, ReasoningPart
from forerun.text.parsing.tag_stream import TagStream

_BARE_BEGUN = re.compile(
    r'\s*(?:`{0,2}|(?:```\w*\s*)?(?:\[\s*(?:[A-Za-z_][\w.-]*)?|<[a-z]*+=?[\w.-]*+|(?:\[\s*)?\{\s*(?:"\w*)?)?)'
)
"""What an answer of calls alone may begin with before it tells: a fence, a list, a tag, an object."""
_BARE = re.compile(
    r'\s*(?:```\w*\s*)?(?:(?:\[\s*)?\{\s*"(?P<key>\w+)"\s*(?::\s*"(?P<name>[^"]*)")?'
    r"|(?:\[\s*|<function=)(?P<function>[\w.-]+)[(>])"
)
MAX_MENTIONS = 32
"""Marks in a value that may be those of a call, and at the end of a thought."""
_BARE_CALL = CallSyntax("", "")
_BARE_END = re.compile(r"\s*+\}?[\s,;]*+")
"""What stands behind a call without marks."""
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
        self._tags: TagStream | None = None
        self._streams = True
        """Whether calls are handed on before their end."""
        self._seen_to = self._num_tried = 0
        """Up to where no mark closes the call that is being read, and how many were there."""

    def read(self, text: str, *, is_last: bool, is_cut: bool = False) -> list[Part]:
        """Split more text; `is_last` if none will follow. A cut call is none, if it was not handed on."""
        if is_last and not self._raw + self._held:
            self._streams = self._tags is not None
            self._read_bare_mark(text)
        parts = self.push(text)
        if not is_last:
            return parts
        parts += self.flush(is_cut=is_cut)
        is_bare = self._syntax is _BARE_CALL
        if self._read == self._read_arguments and (is_cut or is_bare):
            begun = [i for i, part in enumerate(parts) if isinstance(part, CallPart)]
            self.num_calls -= bool(begun)
            if begun and is_bare and not is_cut:
                return [*parts[: begun[-1]], ContentPart(text)]
            return parts[: begun[-1]] if begun else parts
        return parts

    def _read_bare_mark(self, text: str) -> None:
        """Read a whole answer as a thought first that closes one it has not opened."""
        if self._read == self._read_first and self._thinking is not None:
            before, mark, _ = text.partition(self._thinking.close)
            if mark and self._thinking.open not in before:
                self._read = self._read_thought

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

    def flush(self, *, is_cut: bool = False) -> list[Part]:
        """Return the rest: no text will follow. A call that is cut is none."""
        parts = self._push(len(self._raw))
        if self._read == self._read_arguments:
            parts += self._last_arguments()
        held, self._held = self._held, ""
        if self._read == self._read_call and self._syntax is not None:
            self._held = held
            close = self._syntax.close
            end = self._end_of_call(is_last=not is_cut) if close else -1
            if (found := self._read_to(end)) is not None:
                return parts + found + self.flush(is_cut=is_cut)
            self._held = ""
            is_whole_body = held.rstrip().endswith(("}", "]", ")")) and read_calls(
                held, self._tools
            )
            if is_cut and (close or not is_whole_body):
                return parts
            return parts + self._called(held, self._syntax.open + held)
        is_bare = self._read in (self._read_bare, self._read_more)
        calls = read_calls(held, self._tools) if is_bare else None
        if calls and all(call.name in self._tools for call in calls):
            return parts + self._parts(calls)
        if self._read == self._read_thought:
            return parts + self._last_thought(held, is_cut)
        is_text = self._read in (self._read_text, self._read_first, self._read_bare)
        if not is_text or (self.num_calls and not held.strip()):
            return parts
        return parts + ([ContentPart(held)] if held else [])

    def _last_thought(self, held: str, is_cut: bool) -> list[Part]:
        """Return the rest of a thought that is not closed; what may be calls at its end is some."""
        starts = [
            found.start() for mark in self._marks for found in re.finditer(re.escape(mark), held)
        ]
        for start in sorted(starts)[-MAX_MENTIONS:]:
            if calls := self._calls_in_thought(held[start:], is_cut):
                return [ReasoningPart(held[:start].rstrip()), *calls]
        return [ReasoningPart(held.rstrip())] if held.strip() else []

    def _calls_in_thought(self, held: str, is_cut: bool) -> list[Part]:
        """Return the calls of offered tools that the rest of a thought is; none if it is anything else."""
        parser = MarkParser([*self._marks.values()], tools=self._tools)
        parts = parser.read(held, is_last=True, is_cut=is_cut) if held else []
        is_call = all(
            part.name in self._tools
            if isinstance(part, CallPart)
            else not isinstance(part, ContentPart)
            for part in parts
        )
        if not is_call:
            return []
        self.num_calls += parser.num_calls
        return parts

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
        close, calls = self._thinking.close, [*self._marks] if self._tools else []
        starts = [at for mark in calls if (at := self._held.find(mark)) >= 0]
        end = self._held.find(close)
        if starts and (end < 0 or min(starts) < end):
            return self._read_call_in_thought(min(starts), end)
        text, mark = self._up_to([close, *calls])
        if mark:
            self._read = self._read_gap
        return [ReasoningPart(text)] if text or mark else None

    def _read_call_in_thought(self, start: int, end: int) -> list[Part] | None:
        """Hold back what may be a call that ends a thought, up to the end of all; what it is there, `flush` tells.

        If the thought is closed behind it, or goes on, it belongs to the thought.
        """
        mark = next(mark for mark in self._marks if self._held.startswith(mark, start))
        close = self._marks[mark].close
        closed = self._held.find(close, start + len(mark)) if close else -1
        behind = "" if closed < 0 else self._held[closed + len(close) :].lstrip()
        goes_on = behind and not any(
            one.startswith(behind) or behind.startswith(one) for one in self._marks
        )
        if end < 0 and not goes_on:
            text = self._held[:start].rstrip()
            self._held = self._held[len(text) :]
            return [ReasoningPart(text)] if text else None
        length = end if end >= 0 else closed + len(close)
        text, self._held = self._held[:length], self._held[length:]
        return [ReasoningPart(text)]

    def _read_gap(self) -> list[Part] | None:
        """Leave out the empty lines behind a thought."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        self._read = self._read_bare
        return []

    def _read_bare(self) -> list[Part] | None:
        """Hold an answer back that may be calls without marks; whether it is, its end tells.

        A call that names an offered tool first, and then its arguments, is handed on.
        """
        is_marked = self._held.lstrip().startswith(tuple(self._marks))
        if is_marked or not (self._tools and self._marks and self._may_be_bare()):
            self._read = self._read_text
            return []
        begun = _BARE_CALL.begun(self._held)
        if begun is None or begun[0] not in self._tools:
            return None  # what stands in a fence may be an example
        self._syntax = _BARE_CALL
        return self._read_call()

    def _read_bare_end(self) -> list[Part] | None:
        """Read on behind a call without marks: another one, or what closes them, or text."""
        behind = _BARE_END.match(self._held)
        if behind is None or behind.end() == len(self._held):
            return None
        self._held = self._held[behind.end() :]
        self._read = self._read_more if self._held[0] in "{[" else self._read_text
        return []

    def _read_more(self) -> list[Part] | None:
        """Hold back more objects: calls, or results that a model makes up, as the end tells."""
        return None

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
            name = resolved(name, self._tools)
            self._json = JsonText()
            self.num_calls += 1
            return [_call_part(name, own)]
        if not self._syntax.close:
            return None
        end = self._end_of_call()
        return self._read_to(end) if end >= 0 else self._read_tags()

    def _read_tags(self) -> list[Part] | None:
        """Hand on what has come of a call in tags."""
        if not self._streams:
            return None
        self._tags = self._tags or TagStream(self._tools)
        is_new, text = not self._tags.name, self._tags.more(self._held)
        if not text:
            return None
        self.num_calls += is_new
        return [CallPart(self._tags.name), ArgumentsPart(text)] if is_new else [ArgumentsPart(text)]

    def _end_of_call(self, *, is_last: bool = False) -> int:
        """Return where the mark stands that closes a call: one in a value closes nothing. -1: none.

        Where nothing more comes, and none does, the last one is taken.
        """
        assert self._syntax is not None
        close, at = self._syntax.close, self._seen_to
        while self._num_tried < MAX_MENTIONS and (at := self._held.find(close, at)) >= 0:
            self._num_tried += 1
            if is_whole(self._held[:at], self._syntax.open):
                return at
            at += 1
            self._seen_to = at
        return self._held.rfind(close) if is_last else -1

    def _read_to(self, end: int) -> list[Part] | None:
        """Take the call that is closed at a place; None if it is not."""
        assert self._syntax is not None
        if end < 0:
            return None
        body, close = self._held[:end], self._syntax.close
        self._held, self._read = self._held[end + len(close) :], self._read_text
        self._seen_to = self._num_tried = 0
        return self._called(body, self._syntax.open + body + close)

    def _read_arguments(self) -> list[Part] | None:
        """Hand arguments on. A mark may stand in one of their texts; the end of the object shows whether it does."""
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
        if self._syntax is _BARE_CALL:
            self._read = self._read_bare_end
            return []
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
        begun, self._tags = self._tags, None
        if begun is not None and begun.name:
            return self._ended(begun, calls or [])
        return self._parts(calls) if calls else [ContentPart(whole)]

    def _ended(self, begun: TagStream, calls: Sequence[Call]) -> list[Part]:
        """Return the rest of a call that was being handed on, and the others."""
        sent = begun.sent
        if calls and calls[0].name == begun.name and calls[0].arguments.startswith(sent):
            return [ArgumentsPart(calls[0].arguments[len(sent) :]), *self._parts(calls[1:])]
        text = JsonText()
        text.push(sent)
        return [ArgumentsPart(text.rest())]

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
