"""Signals of the process: handlers in Python wait where an exception out of one would leave work half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which take 20 times as long
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

_ALL = tuple(sorted(map(int, signal.valid_signals())))


class _Waiting:
    """Stands in for the handlers, and notes their signals; once nothing waits any more, it hands them on."""

    def __init__(self) -> None:
        self.is_over = False
        self.caught: list[int] = []
        found = zip(_ALL, map(_signal.getsignal, _ALL), strict=True)
        self.handlers = {
            number: _behind(number, handler) for number, handler in found if callable(handler)
        }

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_over:
            self.handlers[number](number, frame)
        else:
            self.caught.append(number)

    def hand_on(self) -> None:
        """Run the handlers of the signals that have come."""
        while self.caught:
            number = self.caught.pop(0)
            self.handlers[number](number, sys._getframe(1))


def _behind(number: int, handler: Any) -> Any:
    """Return a signal's handler; of one that still stands in, as a signal came while it left, the one behind it."""
    while isinstance(handler, _Waiting) and handler.is_over:
        handler = handler.handlers[number]
    return handler


_now: _Waiting | None = None
"""What stands in, or did last."""


@contextmanager
def handled_later() -> Iterator[Callable[[], None]]:
    """Run the handlers of signals that come inside, such as those of Ctrl-C and of time limits, only at the end.

    Where an exception does no harm inside, what it yields runs those of the signals so far; where this is inside
    another one, and in other threads than the main one, nothing.
    """
    global _now
    is_main = threading.current_thread() is threading.main_thread()  # in which Python runs handlers
    if not is_main or (_now is not None and not _now.is_over):
        yield _nothing
        return
    waiting = _Waiting()
    with ExitStack() as end:  # all of it is done, whatever a handler raises
        try:
            _now = waiting
            for number in waiting.handlers:
                _signal.signal(number, waiting)
            yield waiting.hand_on
        finally:
            waiting.is_over = True
            for number in waiting.caught:
                end.callback(signal.raise_signal, number)
            for number, handler in waiting.handlers.items():
                if _signal.getsignal(number) is waiting:  # else it was set anew inside
                    end.callback(_signal.signal, number, handler)


def _nothing() -> None:
    """Leave signals to the block around this one."""
