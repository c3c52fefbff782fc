"""Where in an answer stop strings count: behind what the model thinks. Thoughts repeat the question, marks and all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from forerun.core.params import ThoughtMarks


class StopScope:
    """Follows the text of one answer, which comes in any pieces."""

    def __init__(self, marks: ThoughtMarks, spelled: Callable[[str], str] = str) -> None:
        """`spelled` writes a mark as it stands in the text."""
        self._open = spelled(marks.open)
        self._closes = tuple(map(spelled, marks.closes))
        self._again = spelled(marks.again) if marks.again else ""
        self._held = ""
        """What is not told apart yet."""
        self._read = self._thought if marks.has_begun else self._first

    def is_mark(self, stop: str) -> bool:
        """Tell whether a stop string has a mark in it: such a one counts everywhere."""
        return any(mark in stop for mark in (self._open, *self._closes) if mark)

    def split(self, text: str, *, is_last: bool = False) -> Iterator[tuple[str, bool]]:
        """Yield the text in parts, each with whether stop strings count in it; a possible mark may be held back."""
        self._held += text
        before = None
        while self._held and self._read != before:
            before = self._read
            length, counts = self._read()
            if length:
                part, self._held = self._held[:length], self._held[length:]
                yield part, counts
        if is_last and self._held:
            part, self._held = self._held, ""
            yield part, self._read != self._thought

    def _first(self) -> tuple[int, bool]:
        """Tell whether the answer begins with a thought."""
        begun = self._held.lstrip()
        if begun.startswith((self._open or self._closes[0], *self._closes)):
            self._read = self._thought
        elif begun and not any(mark.startswith(begun) for mark in (self._open, *self._closes)):
            self._read = self._said
        return 0, True

    def _thought(self) -> tuple[int, bool]:
        found = [
            (at, at + len(mark)) for mark in self._closes if (at := self._held.find(mark)) >= 0
        ]
        if found:
            self._read = self._gap
            return min(found)[1], False
        return len(self._held) - _num_begun(self._held, self._closes), False

    def _gap(self) -> tuple[int, bool]:
        """Leave out the empty lines behind a thought."""
        length = len(self._held) - len(self._held.lstrip())
        if length < len(self._held):
            self._read = self._said
        return length, False

    def _said(self) -> tuple[int, bool]:
        if not self._again:
            return len(self._held), True
        at = self._held.find(self._again)
        if at >= 0:
            self._read = self._thought
            return at, True
        return len(self._held) - _num_begun(self._held, (self._again,)), True


def _num_begun(text: str, marks: tuple[str, ...]) -> int:
    """Return the length of the longest end of the text that begins a mark."""
    return max((overlap(text, mark) for mark in marks), default=0)


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of the text that begins the mark, and is not all of it."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
