"""What a model says and calls: calls between the marks of its family, or an answer that is wholly calls without marks.

A call's arguments are handed on while they are still being written. What is not a call in the family's form stays text.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from copy import copy

from forerun.text.parsing.answer_text import AnswerText, num_open
from forerun.text.parsing.calls import Call, CallSyntax, Tools, is_whole, read_calls
from forerun.text.parsing.json_text import JsonText
from forerun.text.parsing.loose import resolved
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, Part
from forerun.text.parsing.tag_stream import TagStream

MAX_MENTIONS = 32
"""Marks in a value that may be those of a call, and at the end of a thought."""
PartReader = Generator[Part | None, None, None]
"""Yields parts as far as they are final, some of them empty, and None where more text is needed."""


def final_parts(reader: PartReader) -> list[Part]:
    """Return the parts up to where more text is needed, without empty ones."""
    parts = list[Part]()
    for part in reader:
        if part is None:
            break
        if isinstance(part, CallPart) or part.text:
            parts.append(part)
    return parts


_BARE_BEGUN = re.compile(
    r'\s*(?:`{0,2}|(?:```\w*\s*)?(?:\[\s*(?:[A-Za-z_][\w.-]*)?|<[a-z]*+=?[\w.-]*+|(?:\[\s*)?\{\s*(?:"\w*)?)?)'
)
"""What an answer of calls alone may begin with before it tells: a fence, a list, a tag, an object."""
_BARE = re.compile(
    r'\s*(?:```\w*\s*)?(?:(?:\[\s*)?\{\s*"(?P<key>\w+)"\s*(?::\s*"(?P<name>[^"]*)")?'
    r"|(?:\[\s*|<function=)(?P<function>[\w.-]+)[(>])"
)
_BARE_CALL = CallSyntax("", "")
_BARE_END = re.compile(r"\s*+\}?[\s,;]*+")
"""What stands behind a call without marks."""
_NAMES = ("name", "tool_name")
_KEYS = (*_NAMES, "function", "arguments", "parameters", "type", "id", "tool_call_id")


class CallReader:
    """Reads an answer's text behind its thought."""

    def __init__(self, text: AnswerText, syntaxes: Iterable[CallSyntax], tools: Tools) -> None:
        """`syntaxes`: none for an answer that can call nothing. `tools` are those that are offered."""
        self.syntaxes = {syntax.open: syntax for syntax in syntaxes}
        """By the mark that opens a call."""
        self.tools = tools
        self._text = text
        self._has_called = False

    def read(self) -> PartReader:
        """Yield what is said and called."""
        if self.tools and self.syntaxes:
            yield from self._read_bare()
        text, marks = self._text, [*self.syntaxes]
        while True:
            said, mark = text.take_until(marks)
            yield ContentPart(said)
            if mark:
                yield from self._read_call(self.syntaxes[mark])
            elif text.is_over:
                rest = text.take_all()
                yield ContentPart("" if self._has_called and not rest.strip() else rest)
                return
            else:
                yield None

    def _parts(self, calls: Sequence[Call]) -> Iterator[Part]:
        for name, arguments, own in calls:
            yield self._called(name, own)
            yield ArgumentsPart(arguments)

    def _called(self, name: str, own: str | None) -> CallPart:
        self._has_called = True
        return CallPart(name) if own is None else CallPart(name, own)

    # Calls between marks

    def _read_call(self, syntax: CallSyntax) -> PartReader:
        """Yield the call behind a mark, while it is written where its form allows that."""
        text, close, tags = self._text, _Close(syntax), TagStream(self.tools)
        while (begun := syntax.begun(text.held)) is None:
            end = close.find(text.held)
            if end >= 0 or text.is_over:
                yield from self._read_body(syntax, end, tags)
                return
            if syntax.close:
                yield from self._read_tags(tags)
            yield None
        yield from self._read_arguments(syntax, begun)
        if syntax.close:
            yield from self._read_others(syntax.close)

    def _read_tags(self, tags: TagStream) -> Iterator[Part]:
        """Yield what has come of a call in tags."""
        is_new, arguments = not tags.name, tags.more(self._text.held)
        if is_new and tags.name:
            yield self._called(tags.name, None)
        yield ArgumentsPart(arguments)

    def _read_body(self, syntax: CallSyntax, end: int, tags: TagStream) -> Iterator[Part]:
        """Yield the calls before a closing mark, or before the end of all; as text what holds none.

        A cut call is none: of one that was being handed on nothing but its last letters comes.
        """
        text, mark = self._text, syntax.close
        if end < 0 and mark and not text.is_cut:
            end = text.held.rfind(mark)  # the last one: a value before it may hold another
        body = text.take(end) if end >= 0 else text.take_all()
        mark = text.take(len(mark)) if end >= 0 else ""
        whole = f"{syntax.open}{body}{mark}"
        calls = read_calls(body, self.tools)
        if text.is_cut and end < 0:
            is_whole_body = calls and body.rstrip().endswith(("}", "]", ")"))
            if syntax.close or not is_whole_body:
                yield ArgumentsPart(tags.more(body) if tags.name else "")
                return
        calls = calls or read_calls(whole, self.tools) or []
        if tags.name:
            yield from self._rest_of_tags(tags, calls)
        elif calls:
            yield from self._parts(calls)
        else:
            yield ContentPart(whole)

    def _rest_of_tags(self, tags: TagStream, calls: Sequence[Call]) -> Iterator[Part]:
        """Yield the rest of a call that was being handed on, and the others."""
        sent = tags.sent
        if calls and calls[0].name == tags.name and calls[0].arguments.startswith(sent):
            yield ArgumentsPart(calls[0].arguments[len(sent) :])
            yield from self._parts(calls[1:])
        else:
            arguments = JsonText()
            arguments.push(sent)
            yield ArgumentsPart(arguments.close())

    def _read_others(self, close: str) -> PartReader:
        """Yield more calls between the same marks, whose arguments are handed on together."""
        text = self._text
        while close not in text.held:
            if text.is_over:
                text.take_all()
                return
            yield None
        others = text.take(text.held.find(close))
        text.take(len(close))
        yield from self._parts(read_calls(others.strip().removeprefix("}"), self.tools) or [])

    # Arguments that are an object

    def _read_arguments(self, syntax: CallSyntax, begun: tuple[str, str | None, int]) -> PartReader:
        """Yield a call whose name has come, and its arguments.

        One that is cut is none unless it was handed on; one without marks that has no end is text.
        """
        text, arguments = self._text, JsonText()
        name, own, start = begun
        head, is_bare = text.take(start), syntax is _BARE_CALL
        name = resolved(name, self.tools)
        if not text.is_over:
            yield self._called(name, own)
            yield from self._read_object(syntax, arguments)
            return
        body = text.held
        parts = [*self._read_object(syntax, arguments)]
        if arguments.is_complete or not (is_bare or text.is_cut):
            yield self._called(name, own)
            yield from parts
        elif is_bare and not text.is_cut:
            yield ContentPart(head + body)

    def _read_object(self, syntax: CallSyntax, arguments: JsonText) -> PartReader:
        """Yield an object in pieces. A mark may stand in one of its texts; the object's end shows whether it does."""
        text, close = self._text, syntax.close
        ahead: JsonText | None = None
        num_seen = 0  # of what is held: `ahead` has read as far
        while not arguments.is_complete:
            kept = len(text.held) - num_open(text.held, [close])
            if close and close in text.held:
                ahead = ahead or copy(arguments)
                _, end = ahead.push(text.held[num_seen:])
                kept, num_seen = len(text.held) if end else 0, len(text.held)
            if kept:
                yield self._more_of(arguments, kept)
                ahead, num_seen = None, 0
            elif text.is_over:
                yield from self._end_of_object(close, arguments)
                return
            else:
                yield None

    def _more_of(self, arguments: JsonText, kept: int) -> ArgumentsPart:
        """Take as much of the arguments as there is, of so many characters."""
        part, end = arguments.push(self._text.held[:kept])
        self._text.take(end or kept)
        return ArgumentsPart(part)

    def _end_of_object(self, close: str, arguments: JsonText) -> Iterator[Part]:
        """Yield the rest of arguments that have no end: a mark in them was none, and ends them, or they are cut."""
        text = self._text
        end = text.held.find(close) if close else -1
        part, _ = arguments.push(text.held[:end] if end >= 0 else text.held)
        yield ArgumentsPart(part)
        if end >= 0:
            text.take(end)
            yield ArgumentsPart(arguments.close())
        else:
            text.take_all()

    # Calls without marks

    def _read_bare(self) -> PartReader:
        """Hold an answer back that may be calls without marks; whether it is, its end tells.

        A call that names an offered tool first, and then its arguments, is handed on.
        """
        text = self._text
        while self._may_be_bare(text.held):
            begun = _BARE_CALL.begun(text.held)
            if begun is not None and begun[0] in self.tools:
                yield from self._read_arguments(_BARE_CALL, begun)
                yield from self._read_behind_bare()
                return
            if text.is_over:  # what stands in a fence may be an example
                held = text.take_all()
                yield from self._parts_of_tools(held) or [ContentPart(held)]
                return
            yield None

    def _may_be_bare(self, held: str) -> bool:
        if held.lstrip().startswith(tuple(self.syntaxes)):
            return False
        if (found := _BARE.match(held)) is None:
            return _BARE_BEGUN.fullmatch(held) is not None
        key, name, function = found["key"], found["name"], found["function"]
        if function is not None:
            return function in self.tools
        is_named = name is None or key not in _NAMES or name in self.tools
        return key in self.tools or (key in _KEYS and is_named)

    def _read_behind_bare(self) -> PartReader:
        """Take what closes a call without marks; more objects are calls, or results that a model makes up."""
        text = self._text
        while (behind := _BARE_END.match(text.held)) is None or behind.end() == len(text.held):
            if text.is_over:
                text.take_all()
                return
            yield None
        text.take(behind.end())
        if text.held[0] not in "{[":
            return
        while not text.is_over:
            yield None
        yield from self._parts_of_tools(text.take_all())

    def _parts_of_tools(self, held: str) -> list[Part]:
        """Return the calls that a text is, if all are of offered tools."""
        calls = read_calls(held, self.tools) or []
        return [*self._parts(calls)] if all(call.name in self.tools for call in calls) else []


class _Close:
    """Finds the mark that closes a call in a body that grows; one within a value closes nothing."""

    def __init__(self, syntax: CallSyntax) -> None:
        self._syntax = syntax
        self._at = self._num_tried = 0

    def find(self, body: str) -> int:
        """Return where the mark stands; -1: it is not there yet."""
        close = self._syntax.close
        while close and self._num_tried < MAX_MENTIONS:
            if (at := body.find(close, self._at)) < 0:
                break
            self._num_tried += 1
            if is_whole(body[:at], self._syntax.open):
                return at
            self._at = at + 1
        return -1
