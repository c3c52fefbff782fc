"""Progress where there is no terminal: a plain line now and then, for logs and for who waits at a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

EVERY_S = 10.0
"""Seconds between two lines, and before the first: quick work prints nothing."""


@dataclass(slots=True)
class PlainProgress:
    """Says on `file` how much of `total` is done and how long the rest will take."""

    what: str
    total: int | None
    file: IO[str]
    clock: Callable[[], float] = time.monotonic
    _begin_s: float = field(init=False)
    _last_s: float = field(init=False)
    _first: float | None = None
    """What was done when time is counted from: an earlier run's part took none of it."""

    def __post_init__(self) -> None:
        self._begin_s = self._last_s = self.clock()

    def update(self, done: float) -> None:
        """Set how much of `total` is done, and print a line if the last one is 10 s old."""
        now_s = self.clock()
        if self._first is None:
            self._first, self._begin_s = done, now_s
        if now_s - self._last_s < EVERY_S:
            return
        self._last_s = now_s
        text = f"{self.what}: {int(done)}" + (f" of {self.total}" if self.total else "")
        if self.total and done > self._first:
            rate = (now_s - self._begin_s) / (done - self._first)
            text += f", {_clock(rate * max(0, self.total - done))} left"
        print(text, file=self.file, flush=True)


def _clock(seconds: float) -> str:
    """Write hours, minutes and seconds.

    >>> _clock(75), _clock(3661)
    ('1:15', '1:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
