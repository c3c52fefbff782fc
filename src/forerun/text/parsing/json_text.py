"""JSON as models write it: texts with backslashes, and ends of lines, that they did not escape."""

from __future__ import annotations

import json
import string

_CLOSERS = {"{": "}", "[": "]"}
_Open = tuple[str, "_Open"] | None
"""What closes the innermost object or list that is open, and the others."""


class JsonText:
    """Follows a JSON object that comes in pieces, and writes what is not escaped in its texts as it must be."""

    def __init__(self) -> None:
        self.is_complete = False
        self._closers: _Open = None
        self._in_text = False
        self._escape = ""
        """A backslash and what follows it, as far as it may be an escape."""

    def push(self, text: str, start: int = 0) -> tuple[str, int]:
        """Return more of the object, from `start` on, and where in the text it ended: 0 if it has not."""
        written = ""
        for i in range(start, len(text)):
            sign = text[i]
            if self._escape:
                self._escape += sign
                if (read := _is_escape(self._escape)) is None:
                    continue
                escape, self._escape = self._escape, ""
                written += escape if read else f"\\{escape[:-1]}"
                if read:
                    continue
            if self._in_text:
                written += self._of_text(sign)
                continue
            written += sign
            if sign == '"':
                self._in_text = True
            elif sign in _CLOSERS:
                self._closers = _CLOSERS[sign], self._closers
            elif sign in "}]":
                self._closers = self._closers and self._closers[1]
                if self._closers is None:
                    self.is_complete = True
                    return written, i + 1
        return written, 0

    def _of_text(self, sign: str) -> str:
        if sign == "\\":
            self._escape = sign
            return ""
        self._in_text = sign != '"'
        return sign if sign >= " " else json.dumps(sign)[1:-1]

    def close(self) -> str:
        """Return what ends the object where its text has ended."""
        self.is_complete = True
        escape = f"\\{self._escape}" if self._escape else ""
        closers, opened = "", self._closers
        while opened is not None:
            sign, opened = opened
            closers += sign
        return escape + ('"' if self._in_text else "") + closers


def _is_escape(text: str) -> bool | None:
    """Tell whether a backslash and what follows it are one of JSON's escapes; None: not yet."""
    if len(text) == 2:
        return None if text[1] == "u" else text[1] in '"\\/bfnrt'
    return False if text[-1] not in string.hexdigits else len(text) == 6 or None


def repaired(text: str) -> str:
    """Return objects, and what stands between them, with what is not escaped in texts as it must be."""
    written, at = "", 0
    while at < len(text):
        more, end = JsonText().push(text, at)
        written += more
        at = end or len(text)
    return written
