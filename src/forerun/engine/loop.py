"""The one owner of an engine: takes requests, steps the engine, and routes its events to who asked.

Several threads may use a loop. The thread that waits for a request steps the engine, for all requests, so the
loop needs no thread of its own:

    handle = loop.submit(prompt_ids, params)
    for event in handle.events(): ...

A request ends by itself, by `cancel`, or by an error in a step, which ends every running request.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar
from weakref import WeakSet, ref

from forerun.core.params import SamplingParams
from forerun.core.signals import handled_later
from forerun.core.types import Event
from forerun.decoding.stops import Detokenizer
from forerun.engine.engine import Engine
from forerun.engine.metrics import RequestCounts
from forerun.engine.outputs import TokenText
from forerun.engine.request import RequestHandle, Sink


class EngineLock:
    """A fair, reentrant lock that the loops of one model share. Signal handlers wait until it is released.

    `os.fork` waits for it, so that no thread is using the model in the child.
    """

    all: ClassVar[WeakSet[EngineLock]] = WeakSet()

    def __init__(self) -> None:
        self._queue, self._lock = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._jobs: deque[Callable[[], object]] = deque()
        EngineLock.all.add(self)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock: only this thread may touch the engine. Nested calls pass."""
        if self._owner == threading.get_ident():
            yield
            return
        with handled_later():
            with self._queue:  # without it a thread that steps on and on would always be first
                self._lock.acquire()
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._release()

    def call_when_free(self, job: Callable[[], object]) -> None:
        """Call a function that does not raise: now, or when the lock is released. Never waits.

        So garbage may be collected at any moment, also where this thread is about to take the lock or has it.
        """
        with handled_later():
            self._jobs.append(job)
            if self._lock.acquire(blocking=False):
                self._owner = threading.get_ident()
                self._release()

    def _release(self) -> None:
        """Do the jobs and release the lock; take it again for those that came in between."""
        while True:
            while self._jobs:
                self._jobs.popleft()()
            self._owner = None
            self._lock.release()
            if not (self._jobs and self._lock.acquire(blocking=False)):
                return
            self._owner = threading.get_ident()

    def before_fork(self) -> None:
        """Wait until the lock is free, and keep other threads from it."""
        if self._owner != threading.get_ident():
            self._queue.acquire()
            self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Release what `before_fork` took."""
        if self._owner != threading.get_ident():
            self._owner = threading.get_ident()
            self._release()
            self._queue.release()

    def after_fork_in_child(self) -> None:
        """Make the lock free: the threads that wait for it are in the parent only."""
        self._queue, self._lock = threading.Lock(), threading.Lock()
        if self._owner == threading.get_ident():
            self._lock.acquire()


def _for_each_lock(call: Callable[[EngineLock], None]) -> None:
    for lock in [*EngineLock.all]:
        call(lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _for_each_lock(EngineLock.before_fork),
        after_in_parent=lambda: _for_each_lock(EngineLock.after_fork_in_parent),
        after_in_child=lambda: _for_each_lock(EngineLock.after_fork_in_child),
    )


class EngineLoop:
    """Runs an engine for many requests."""

    def __init__(
        self,
        engine: Engine,
        new_text: Callable[[SamplingParams], Detokenizer | None] = lambda params: None,
        lock: EngineLock | None = None,
        token_text: TokenText = lambda token_id: None,
    ) -> None:
        """`new_text` makes what turns a sequence's tokens into text, `token_text` gives the text of one token.

        `lock` is that of the engine's model.
        """
        self.engine = engine
        self.lock = lock or EngineLock()
        self.served = RequestCounts()
        self.token_text = token_text
        self._new_text = new_text
        self._num_requests = 0
        self._requests: dict[int, Callable[[], RequestHandle | None]] = {}
        """By sequence whose end has not been delivered: its request, None once the caller has dropped it."""
        self._dropped: deque[Callable[[], RequestHandle | None]] = deque()
        """Those of `_requests` that were dropped. No Python code adds them: a signal handler could raise in it."""
        self._raised: BaseException | None = None

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        sink: Sink | None = None,
        *,
        prompt: str | None = None,
    ) -> RequestHandle:
        """Queue a prompt, `params.n` sequences of it. Raises RequestError and CapacityError.

        Without a `sink` the events are kept for `RequestHandle.events`; to drop the handle then cancels the request.
        `prompt` is the text of the ids.
        """
        handle, each, asked_s = None, [*_each(params)], time.perf_counter()
        prepared = self.engine.prepare(prompt_ids, each[0])  # others step meanwhile
        try:
            with self.lock():
                self._end_dropped()
                handle = RequestHandle(self, str(self._num_requests), prompt, sink)
                find = ref(handle, self._dropped.append) if sink is None else handle.itself
                for i, own in enumerate(each):
                    text = self._new_text(own)
                    run = self.engine.add(prompt_ids, own, text, stream=i, prepared=prepared)
                    run.start_s = asked_s  # a grammar takes its time
                    handle.runs += (run,)
                    self._requests[run.seq.id] = find
                self._num_requests += 1
                self.served.prompt_tokens += len(prompt_ids)
        except BaseException:  # the caller gets no handle
            if handle is not None:
                handle.cancel()
            raise
        return handle

    def is_running(self, seq_id: int) -> bool:
        """Tell whether there may be events of a sequence to come: false when its end was delivered."""
        return seq_id in self._requests

    def cancel(self, seq_ids: Iterable[int]) -> None:
        """End sequences, keeping what they have; their last events say so. Waits for nothing, harmless if ended."""
        self.lock.call_when_free(partial(self._end, tuple(seq_ids)))

    def end_all(self) -> None:
        """End all requests, keeping what they have."""
        self.cancel([*self._requests])

    def step(self, waiting: RequestHandle | None = None) -> bool:
        """Run one pass for all requests; return True while there is work. An error ends all requests, and is raised.

        Nothing is done if other threads' steps have brought what `waiting` waits for.
        """
        with self.lock():
            if waiting is not None and (waiting.is_finished or waiting.unread):
                return self.engine.has_work
            self._end_dropped()
            try:
                events = self.engine.step()
            except BaseException as error:
                self._fail(error)
                raise
            for event in events:
                self._deliver(event)
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised
            return self.engine.has_work

    def _deliver(self, event: Event) -> None:
        """Hand an event to its request; a sink that raises ends its request, no other."""
        find = self._requests.get(event.seq_id)
        if find is None:
            return
        self.served.record(event)
        if (handle := find()) is not None:
            if event.error is not None:
                handle.fail(event.error)
            try:
                handle.sink(event)
            except BaseException as error:
                handle.sink = _ignore
                handle.fail(error)
                from asyncio import CancelledError

                if not isinstance(error, Exception | CancelledError | GeneratorExit):
                    self._raised = (
                        error  # it is meant for the process: raised when all have their events
                    )
        if event.finish_reason is not None:
            del self._requests[event.seq_id]

    def _end(self, seq_ids: Iterable[int]) -> None:
        for seq_id in seq_ids:
            if (event := self.engine.abort(seq_id)) is not None:
                self._deliver(event)

    def _end_dropped(self) -> None:
        """End the requests that their callers have dropped."""
        while self._dropped:
            dropped = self._dropped.popleft()
            self._end([seq_id for seq_id, find in self._requests.items() if find is dropped])

    def _fail(self, error: BaseException) -> None:
        """End all requests after an error that may have left the engine half way through a step."""
        for seq_id, find in [*self._requests.items()]:
            if (handle := find()) is not None:
                handle.error = handle.error or error
            with suppress(Exception):  # one error is enough
                self._end([seq_id])
        self._requests.clear()


def _ignore(event: Event) -> None:
    """Be the sink in the place of one that has raised."""


def _each(params: SamplingParams) -> Iterator[SamplingParams]:
    """Copy and check the parameters for each of the `n` sequences; only the first one scores the prompt."""
    yield replace(params)
    if params.n > 1:
        yield from [replace(params, prompt_logprobs=None)] * (params.n - 1)
