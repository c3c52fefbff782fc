r"""A call in tags while it is written: Qwen3-Coder's, whose arguments would else come when all of them are there.

    <function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\n...

What is handed on is a beginning of the arguments that `tags.read_tags` finds in the whole; the end of a call is read by
that alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from forerun.text.parsing.tags import (
    M3_MARK,
    SIGNS,
    SchemaTypes,
    Tools,
    quoted,
    typed,
    without_lines,
)

_HEAD = re.compile(r"\s*+(<function=)?([\w.:/@#~+-]+)>\s*+(?=<parameter=)")
_PARAMETER = re.compile(r"<parameter=([^\"<>]+)>")
_CLOSE = "</parameter"
_NEXT = re.compile(r"</parameter>\s*+(?=<parameter=[^\"<>]+>)")
"""A close that is one for sure."""
_NO_CLOSE = re.compile(r"</parameter(?:[^>]|>\s*+(?:[^\s<]|<[^/p]))")
"""What begins like a close, within a value."""
_LAG = 16
"""Letters at the end of what has come that may be the beginning of a sign."""
_RAW = "<![CDATA["


class TagStream:
    """The first call in a body that grows, if it is one of an offered tool."""

    def __init__(self, tools: Tools) -> None:
        self.name = ""
        """Of the tool, once it is known."""
        self._tools, self._sent = tools, list[str]()
        self._types = SchemaTypes({})
        self._at = self._start = self._done = self._scanned = self._seen = 0
        self._key, self._is_text = "", False
        self._read: Callable[[str], str | None] = self._read_head

    @property
    def sent(self) -> str:
        """The arguments that were handed on."""
        return "".join(self._sent)

    def more(self, body: str) -> str:
        """Return more of the arguments, for a body that has the last one at its beginning."""
        new, self._seen = body[max(0, self._seen - _LAG) :], len(body)
        if any(sign in new for sign in (M3_MARK, *SIGNS)):  # the whole is read otherwise
            self._read = self._read_nothing
        found = []
        while (text := self._read(body)) is not None:
            found.append(text)
        self._sent += found
        return "".join(found)

    def _read_head(self, body: str) -> str | None:
        if (head := _HEAD.match(body)) is None:
            return None
        if head[2] not in self._tools:
            self._read = self._read_nothing
            return None
        self.name, self._at, self._read = head[2], head.end(), self._read_parameter
        self._types = SchemaTypes(self._tools[self.name])
        return "{"

    def _read_nothing(self, body: str) -> str | None:
        return None

    def _read_parameter(self, body: str) -> str | None:
        if (found := _PARAMETER.match(body, self._at)) is None:
            return None
        before = ", " if self._key else ""
        self._key, self._read = found[1].strip(), self._read_value
        self._start = self._done = self._scanned = found.end()
        self._is_text = self._types.of(self._schema) == {"string"}
        return f"{before}{json.dumps(self._key)}: "

    @property
    def _schema(self) -> object:
        named = self._tools[self.name].get("properties")
        return named.get(self._key) if isinstance(named, Mapping) else None

    def _read_value(self, body: str) -> str | None:
        """Hand on what belongs to a value for sure: of a text its letters, of all else the whole."""
        close = body.find(_CLOSE, self._scanned)
        if close < 0:
            self._scanned = max(self._scanned, len(body) - _LAG)
            return self._text(body, len(body) - _LAG)
        if (end := _NEXT.match(body, close)) is not None:
            self._at, self._read = end.end(), self._read_parameter
            return self._rest(body, close)
        if _NO_CLOSE.match(body, close):
            self._scanned = close + 1
            return ""
        self._scanned = close
        return self._text(body, close - 1)

    def _text(self, body: str, end: int) -> str | None:
        """Return more of a text that goes on."""
        if not self._is_text or end <= self._done or len(body) < self._start + _LAG:
            return None
        begun = ""
        if self._done == self._start:
            head = body[self._start : end].lstrip()
            if _RAW.startswith(head):  # too little to tell
                return None
            if head.startswith((_RAW, '"')):  # or a text as JSON, which is told at its end
                self._is_text = False
                return None
            self._done += body.startswith("\n", self._start)
            begun = '"'
        text, self._done = body[self._done : end], max(self._done, end)
        return begun + quoted(text)[1:-1]

    def _rest(self, body: str, close: int) -> str:
        value = without_lines(body[self._start : close])
        if self._done > self._start:
            begun = len(body[self._start : self._done].removeprefix("\n"))
            return quoted(value[begun:])[1:]
        return typed(value, self._schema, self._types)
