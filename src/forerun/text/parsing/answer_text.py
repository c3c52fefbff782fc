"""The text of an answer while it comes, as its readers take it."""

from __future__ import annotations

from collections.abc import Sequence


class AnswerText:
    """What has come of an answer and was not taken yet."""

    def __init__(self, silent: Sequence[str] = ()) -> None:
        """`silent` are marks that are left out."""
        self.held = ""
        self.is_over = self.is_cut = False
        """Whether no more text will come, and whether a limit is why."""
        self._silent, self._raw = silent, ""

    def push(self, text: str, *, is_last: bool, is_cut: bool) -> None:
        """Add text; what may be the beginning of a silent mark is kept back until more comes."""
        raw = self._raw + text
        for mark in self._silent:
            raw = raw.replace(mark, "")
        kept = len(raw) if is_last else len(raw) - num_open(raw, self._silent)
        self.held, self._raw = self.held + raw[:kept], raw[kept:]
        self.is_over, self.is_cut = is_last, is_last and is_cut

    def take(self, length: int) -> str:
        """Take so many characters, and return them."""
        text, self.held = self.held[:length], self.held[length:]
        return text

    def take_all(self) -> str:
        """Take what is there, and return it."""
        return self.take(len(self.held))

    def take_until(self, marks: Sequence[str]) -> tuple[str, str]:
        """Take what is final before the first of some marks, without spaces at its end, and that mark.

        Where none is there, the possible beginning of one is left, and so are the spaces before it.
        """
        found = [(at, -len(mark), mark) for mark in marks if (at := self.held.find(mark)) >= 0]
        if found:
            at, _, mark = min(found)
            return self.take(at + len(mark))[:at].rstrip(), mark
        text = self.held[: len(self.held) - num_open(self.held, marks)]
        return self.take(len(text.rstrip() if marks else text)), ""


def num_open(text: str, marks: Sequence[str]) -> int:
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
