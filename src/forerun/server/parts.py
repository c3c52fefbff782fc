"""What an answer is made of: text and tool calls, piece by piece as they come."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from forerun.text.tool_calls import ArgumentsPart, CallPart, Part, TextPart, ToolCallParser


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a call: its first piece has id and name, the others more of the arguments."""

    index: int
    id: str
    name: str | None
    arguments: str = ""


Delta = TextDelta | CallDelta


class Reader:
    """Follows one completion. Without tools all of it is text."""

    def __init__(self, *, with_tools: bool) -> None:
        self._parser = ToolCallParser() if with_tools else None
        self._index, self._id = -1, ""

    @property
    def has_calls(self) -> bool:
        """True once a call has begun."""
        return self._index >= 0

    def read(self, text: str, *, is_last: bool) -> list[Delta]:
        """What the text brings; what may begin a call is held back until it is clear, or the last."""
        if self._parser is None:
            return [TextDelta(text)] if text else []
        parts = self._parser.push(text)
        if is_last:
            parts += self._parser.flush()
        return [self._delta(part) for part in parts]

    def _delta(self, part: Part) -> Delta:
        match part:
            case TextPart(text):
                return TextDelta(text)
            case CallPart(name):
                self._index, self._id = self._index + 1, f"call_{uuid.uuid4().hex[:24]}"
                return CallDelta(self._index, self._id, name)
            case ArgumentsPart(text):
                return CallDelta(self._index, self._id, None, text)


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call."""

    id: str
    name: str
    arguments: str


def whole(text: str, *, with_tools: bool) -> tuple[str, list[Call]]:
    """The text and the calls of a whole completion."""
    said, calls = "", list[Call]()
    for delta in Reader(with_tools=with_tools).read(text, is_last=True):
        match delta:
            case TextDelta(more):
                said += more
            case CallDelta(_, call_id, str(name), arguments):
                calls.append(Call(call_id, name, arguments))
            case CallDelta(arguments=arguments):
                last = calls[-1]
                calls[-1] = Call(last.id, last.name, last.arguments + arguments)
    return said, calls
