"""A request as its event loop sees it: what the engine thread sends of its answer, and of how far prompts were read."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from forerun.core.errors import ForerunError
from forerun.core.types import Event, Seq
from forerun.engine.loop import Request
from forerun.engine.sequence import SequenceState

EACH_S, MAX_S = 0.005, 0.1
"""Where many streams run, each is sent to after so long for every one of them, at most: sending stays a small share."""


class Closed(ForerunError):
    """The worker ends, and no request goes on."""


class StreamEvent(NamedTuple):
    """An event, the index of its completion among all of the request, and when its step ended (`time.perf_counter`).

    The completions of the first prompt come first.
    """

    completion: int
    event: Event
    time_s: float


class PromptProgress(NamedTuple):
    """Tokens of a prompt that the cache holds, of which it had `num_cached` before, and the seconds that it took."""

    completion: int
    """The index of the prompt's first completion among all of the request."""
    num_prompt: int
    num_cached: int
    num_read: int
    seconds: float


class ProgressReader:
    """Follows one request, in the engine thread alone."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, int]] = {}
        """By completion: when its prompt was begun, and the tokens that were reported last."""

    def read(
        self,
        handles: Sequence[Request],
        num_read: Callable[[Seq], int | None],
        start_s: float,
        end_s: float,
    ) -> list[PromptProgress]:
        """Return what a step from `start_s` to `end_s` has read; of a prompt that it began also where it began."""
        progress, completion = list[PromptProgress](), 0
        for handle in handles:
            seq, read = handle.runs[0].seq, num_read(handle.runs[0].seq)
            begun_s, last = self._last.get(completion, (start_s, -1))
            if read is not None and last not in (read, seq.num_prompt):
                prompt = (completion, seq.num_prompt, seq.num_reused)
                if last < 0:
                    progress.append(PromptProgress(*prompt, seq.num_reused, 0.0))
                progress.append(PromptProgress(*prompt, read, end_s - begun_s))
                self._last[completion] = begun_s, read
            completion += len(handle.runs)
        return progress


class AsyncRequest:
    """A request of one prompt or several, as its event loop sees it; all but `end` is called in that loop."""

    def __init__(
        self,
        drop: Callable[[AsyncRequest], object],
        loop: asyncio.AbstractEventLoop,
        on_over: Callable[[AsyncRequest], object] = lambda request: None,
        interval_s: float = 0.0,
        *,
        with_progress: bool = False,
    ) -> None:
        """`drop` has the engine thread end it before the next step."""
        self.progress: list[PromptProgress] = []
        """How far its prompts were read, as far as it has not been taken from here; if it was asked for."""
        self.reader = ProgressReader() if with_progress else None
        """Reads it, in the engine thread alone."""
        self.interval_s = interval_s
        """Events are sent at multiples of it, the first at once."""
        self._tick = 0.0
        self.start_s = time.perf_counter()
        self.error: BaseException | None = None
        """What ended it before its time."""
        self.handles: list[Request] = []
        """What the engine made of its prompts, once it has been accepted."""
        self.loop = loop
        self._drop, self._on_over = drop, on_over
        self._waiting: deque[StreamEvent] = deque()
        self._is_over = False
        self._is_cancelled = False
        self._accepted: asyncio.Future[None] = loop.create_future()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def runs(self) -> list[SequenceState]:
        """Its completions, those of the first prompt first."""
        return [run for handle in self.handles for run in handle.runs]

    async def accepted(self) -> None:
        """Wait until the engine has taken it. Raises RequestError and CapacityError if it does not."""
        try:
            await self._accepted
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def compiled(self) -> None:
        """Wait until its grammar is compiled, while its prompt is read. Raises RequestError if it cannot be."""
        try:
            if self.runs and (compiling := self.runs[0].pipeline.compiling) is not None:
                await asyncio.shield(asyncio.wrap_future(compiling.compiled))
        except BaseException:
            self.cancel()
            raise

    async def events(self) -> AsyncIterator[list[StreamEvent]]:
        """Yield what came, as many steps together as came since the last time. Raises what ended the request.

        Nothing, where there is only `progress`.
        """
        try:
            while self._waiting or not self._is_over:
                if not self._waiting:
                    self._waiter = self.loop.create_future()
                    await self._waiter
                events = [*self._waiting]
                self._waiting.clear()
                if events or self.progress:
                    yield events
            if self.error is not None:
                raise self.error
        finally:
            self.cancel()

    def cancel(self, error: BaseException | None = None) -> None:
        """End it before the next step; harmless if it has ended. `error` is raised to who reads the events."""
        if not (self._is_over or self._is_cancelled):
            self._is_cancelled, self.error = True, self.error or error
            self._drop(self)

    def end(self) -> None:
        """End what the engine runs of it; the engine thread does that."""
        for handle in self.handles:
            handle.cancel()

    def is_due(self, now_s: float, num_running: int) -> bool:
        """Tell whether the engine thread should send its events: at once, then after multiples of the interval."""
        if self.interval_s == 0:
            return True
        interval_s = max(self.interval_s, min(EACH_S * num_running, MAX_S))
        before, self._tick = self._tick, now_s // interval_s
        return self._tick != before

    def deliver(
        self,
        events: list[StreamEvent],
        is_over: bool,
        error: BaseException | None,
        progress: Sequence[PromptProgress] = (),
    ) -> None:
        """Take what the engine thread sent."""
        self._waiting += events
        self.progress += progress
        self.error = self.error or error
        if is_over and not self._is_over:
            self._is_over = True
            self._on_over(self)
        if not self._accepted.done():
            if self.error is not None and is_over:
                self._accepted.set_exception(self.error)
            else:
                self._accepted.set_result(None)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
