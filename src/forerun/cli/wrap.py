"""A text that streams into a terminal, broken at spaces where a line is full."""

from __future__ import annotations

import re
import shutil
import unicodedata
from typing import TextIO

_PARTS = re.compile(r"\n|[^\S\n]|\S+")


class WordWrap:
    """Holds a word back until it ends, to know on which line it stands. Without a width the text stays as it is."""

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._column = 0
        self._held: list[str] = []
        self._held_width = 0

    @classmethod
    def of(cls, stream: TextIO) -> WordWrap:
        """Wrap at the width of the terminal that a stream is; not at all if it is none."""
        return cls(shutil.get_terminal_size().columns if stream.isatty() else None)

    def push(self, text: str, style: str = "{}") -> str:
        """Return what can be printed; `style` is put around each piece of the text."""
        if self._width is None:
            return style.format(text)
        return "".join(self._part(part, style) for part in _PARTS.findall(text))

    def flush(self) -> str:
        """Return the word that is held back, on a line of its own if this one has no room for it."""
        word, width = "".join(self._held), self._held_width
        self._held, self._held_width = [], 0
        limit = self._width or 0
        breaks = self._column > 0 and self._column + width > limit >= width
        self._column = width if breaks else self._column + width
        if limit and self._column > limit:  # the terminal breaks it
            self._column %= limit
        return "\n" * breaks + word

    def _part(self, part: str, style: str) -> str:
        if part == "\n":
            out, self._column = self.flush() + part, 0
            return out
        if part.isspace():
            out = self.flush()
            if self._column >= (self._width or 0):
                self._column = 0
                return f"{out}\n"
            self._column += 1
            return out + style.format(part)
        self._held.append(style.format(part))
        self._held_width += _cells(part)
        has_wide = _cells(part) > len(part)  # such a script has no spaces
        return self.flush() if has_wide or self._held_width > (self._width or 0) else ""


def _cells(word: str) -> int:
    """Count the columns of a word: two for a sign of Chinese and the like, none for an accent of its own."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in word)
    return len(word) + wide - sum(unicodedata.combining(sign) > 0 for sign in word)
