"""Signals of the process: handlers in Python wait where an exception out of one would leave work half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which take 20 times as long
import signal
import threading
from collections.abc import Iterator
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


def _behind(number: int, handler: Any) -> Any:
    """Return a signal's handler; of one that still stands in, as a signal came while it left, the one behind it."""
    while isinstance(handler, _Waiting) and handler.is_over:
        handler = handler.handlers[number]
    return handler


@contextmanager
def handled_later() -> Iterator[None]:
    """Run the handlers of signals that come inside, such as those of Ctrl-C and of time limits, only at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread
        return
    waiting = _Waiting()
    with ExitStack() as end:  # all of it is done, whatever a handler raises
        try:
            for number in waiting.handlers:
                _signal.signal(number, waiting)
            yield
        finally:
            waiting.is_over = True
            for number in waiting.caught:
                end.callback(signal.raise_signal, number)
            for number, handler in waiting.handlers.items():
                if _signal.getsignal(number) is waiting:  # else it was set anew inside
                    end.callback(_signal.signal, number, handler)
