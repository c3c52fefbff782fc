"""JSON as models write it: texts with backslashes, and ends of lines, that they did not escape."""

from __future__ import annotations

import json
import string

_CLOSERS = {"{": "}", "[": "]"}


class JsonText:
    """Follows a JSON object that comes in pieces, and writes what is not escaped in its texts as it must be."""

    def __init__(self) -> None:
        self.is_complete = False
        self._closers = ""
        """Of the objects and lists that are open, the innermost first."""
        self._in_text = False
        self._escape = ""
        """A backslash and what follows it, as far as it may be an escape."""

    def push(self, text: str) -> tuple[str, int]:
        """Return more of the object, and how many characters were read when it ended: 0 if it has not."""
        written = ""
        for i, sign in enumerate(text):
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
                self._closers = _CLOSERS[sign] + self._closers
            elif sign in "}]":
                self._closers = self._closers[1:]
                if not self._closers:
                    self.is_complete = True
                    return written, i + 1
        return written, 0

    def _of_text(self, sign: str) -> str:
        if sign == "\\":
            self._escape = sign
            return ""
        self._in_text = sign != '"'
        return sign if sign >= " " else json.dumps(sign)[1:-1]

    def rest(self) -> str:
        """Return what ends the object where its text has ended."""
        escape = f"\\{self._escape}" if self._escape else ""
        return escape + ('"' if self._in_text else "") + self._closers


def _is_escape(text: str) -> bool | None:
    """Tell whether a backslash and what follows it are one of JSON's escapes; None: not yet."""
    if len(text) == 2:
        return None if text[1] == "u" else text[1] in '"\\/bfnrt'
    return False if text[-1] not in string.hexdigits else len(text) == 6 or None


def mended(text: str) -> str:
    """Return objects, and what stands between them, with what is not escaped in texts as it must be."""
    written = ""
    while text:
        more, length = JsonText().push(text)
        written, text = written + more, text[length:] if length else ""
    return written
