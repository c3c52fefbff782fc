"""What a request's masks may take: one that is slow ends its own request, and keeps the others waiting for a moment.

The library computes a mask in native code that no thread can interrupt, for some grammars in a minute: so it does in a
thread that can be left alone with it, at the lowest priority.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import finalize

from forerun.core.errors import RequestError
from forerun.system import background, processes

MASK_S = 0.05
"""Time of a processor that a mask may take: those of JSON take a thousandth, of recursive GBNF a fiftieth."""
PATIENCE_S = 0.25
"""What all masks of a request may take beyond it."""

T = TypeVar("T")


class MaskThread:
    """Computes masks for the sequences that wait for them, one at a time."""

    def __init__(self) -> None:
        self.num_lost = 0
        """Masks that took too long and are still being computed."""
        self._new()

    def run(self, call: Callable[[], T], most_s: float) -> tuple[T, float]:
        """Return what a function returns, and the processor's time it took. Raises TimeoutError beyond `most_s`."""
        answers: queue.SimpleQueue[tuple[Any, BaseException | None, float]] = queue.SimpleQueue()
        start_s, left_s = processes.thread_seconds(self._thread), most_s
        self._calls.put((call, answers))
        while left_s > 0:
            try:
                found, error, took_s = answers.get(timeout=left_s)
            except queue.Empty:  # it may have had to wait for a processor
                left_s = most_s - (processes.thread_seconds(self._thread) - start_s)
                continue
            if error is not None:
                raise error
            return found, took_s
        self._lose()
        raise TimeoutError

    def _new(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = background.watch("forerun-masks", partial(_compute, self._calls))
        self._end = finalize(self, self._calls.put, None)

    def _lose(self) -> None:
        """Leave the thread alone with its mask, after which it ends, and take another."""
        processes.lower_priority(self._thread, 19)
        self.num_lost += 1
        self._calls.put((self._found, queue.SimpleQueue()))
        self._end()
        self._new()

    def _found(self) -> None:
        self.num_lost -= 1


def _compute(calls: queue.SimpleQueue[Any]) -> None:
    while (job := calls.get()) is not None:
        call, answers = job
        found, error, start_s = None, None, time.thread_time()
        try:
            found = call()
        except BaseException as raised:
            error = raised
        answers.put((found, error, time.thread_time() - start_s))
        del job, call, answers, found, error


class MaskClock:
    """Counts what the masks of one request take."""

    def __init__(self, thread: MaskThread) -> None:
        self._thread, self._left_s = thread, PATIENCE_S

    def run(self, call: Callable[[], T]) -> T:
        """Compute a mask. Raises RequestError where that takes too long, or masks before it did."""
        try:
            found, took_s = self._thread.run(call, MASK_S + self._left_s)
            self._left_s -= max(0.0, took_s - MASK_S)
            if self._left_s > 0:
                return found
        except TimeoutError:
            self._left_s = 0.0
        raise RequestError(
            "structured_outputs became too complex in mid-answer: to find the tokens that may come takes more than "
            f"{MASK_S * 1000:g} ms again and again; leave out recursion, or what can be read in several ways"
        )
