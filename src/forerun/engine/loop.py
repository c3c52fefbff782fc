"""The one owner of an engine: takes requests, steps the engine, and routes its events to who asked.

Several threads may use a loop. The thread that waits for a request steps the engine, for all requests, so the
loop needs no thread of its own:

    handle = loop.submit(prompt_ids, params)
    for event in handle.events(): ...

A request ends by itself, by `cancel`, or by an error in a step, which ends every running request.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakSet

from forerun.core.params import SamplingParams
from forerun.core.types import Event
from forerun.decoding.stops import Detokenizer
from forerun.engine.engine import Engine
from forerun.engine.metrics import RequestCounts
from forerun.engine.outputs import CompletionOutput, RequestOutput, Spell, by_token
from forerun.engine.sequence import SequenceState

MAX_LEARN_S = 1.0
"""Seconds of learning that may be saved up."""
Sink = Callable[[Event], object]
"""Called with each event of a request, by the thread that steps; should return at once."""


class EngineLock:
    """Lets one thread at a time use a model, in the order of asking. Ctrl-C waits for the turn's end.

    Loops of one model share it. A thread that has the turn may take it again. `os.fork` waits for the end of a turn, so
    that no thread is using the model in the child.
    """

    all: ClassVar[WeakSet[EngineLock]] = WeakSet()

    def __init__(self) -> None:
        self._door, self._room = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        EngineLock.all.add(self)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock: only this thread may touch the engine. Nested calls pass."""
        if self._owner == threading.get_ident():
            yield
            return
        with _interrupts_later():
            with self._door:  # without it a thread that steps on and on would always be first
                self._room.acquire()
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None
                self._room.release()

    def hold(self) -> None:
        """Wait until the lock is free, and keep all others out until `let_go`."""
        if self._owner != threading.get_ident():
            self._door.acquire()
            self._room.acquire()

    def let_go(self) -> None:
        """Release what `hold` took."""
        if self._owner != threading.get_ident():
            self._room.release()
            self._door.release()

    def begin_anew(self) -> None:
        """Start with a free lock in a forked child: the threads that wait are in the parent only."""
        self._door, self._room = threading.Lock(), threading.Lock()
        if self._owner == threading.get_ident():
            self._room.acquire()


def _each_of_all(do: Callable[[EngineLock], None]) -> None:
    for turns in [*EngineLock.all]:
        do(turns)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _each_of_all(EngineLock.hold),
        after_in_parent=lambda: _each_of_all(EngineLock.let_go),
        after_in_child=lambda: _each_of_all(EngineLock.begin_anew),
    )


class EngineLoop:
    """Runs an engine for many requests."""

    def __init__(
        self,
        engine: Engine,
        new_text: Callable[[SamplingParams], Detokenizer | None] = lambda params: None,
        turns: EngineLock | None = None,
        spell: Spell = lambda token_id: None,
    ) -> None:
        """`new_text` makes what turns a sequence's tokens into text, `spell` gives the text of one token.

        `turns` are those of the engine's model.
        """
        self.engine = engine
        self.turns = turns or EngineLock()
        self.served = RequestCounts()
        self.spell = spell
        self._new_text = new_text
        self._num_requests = 0
        self._handles: dict[int, RequestHandle] = {}  # by sequence, while it runs
        self._cancelled: list[RequestHandle] = []
        self._is_stepping = False
        self._learn_s = 0.0  # that the drafter may still learn

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        sink: Sink | None = None,
        *,
        prompt: str | None = None,
    ) -> RequestHandle:
        """Queue a prompt, `params.n` sequences of it. Raises RequestError and CapacityError.

        Without a `sink` the events are kept for `RequestHandle.events`; `prompt` is the text of the ids.
        """
        with self.turns():
            runs = tuple(
                self.engine.add(prompt_ids, own, self._new_text(own), stream=i)
                for i, own in enumerate(_each(params))
            )
            news: deque[Event] = deque()
            handle = RequestHandle(
                self, str(self._num_requests), prompt, runs, news, sink or news.append
            )
            self._num_requests += 1
            self.served.prompt_tokens += len(prompt_ids)
            self._handles |= {run.seq.id: handle for run in runs}
            return handle

    def cancel(self, handle: RequestHandle) -> None:
        """End a request, keeping what it has; its last events say so. Harmless if it has ended."""
        with self.turns():
            self._cancelled.append(handle)
            if not self._is_stepping:  # a stream may be collected as garbage inside a step
                self._end_cancelled()

    def end_all(self) -> None:
        """End all requests, keeping what they have."""
        with self.turns():
            for handle in [*self._handles.values()]:
                self.cancel(handle)

    def step(self, waiting: RequestHandle | None = None) -> bool:
        """Run one pass for all requests; return True while there is work. An error ends all requests, and is raised.

        Nothing is done if other threads' steps have brought what `waiting` waits for.
        """
        with self.turns():
            if waiting is not None and (waiting.is_finished or waiting.news):
                return self.engine.has_work
            self._is_stepping = True
            try:
                events = self.engine.step()
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._is_stepping = False
            for event in events:
                self._deliver(event)
            self._end_cancelled()
            return self.engine.has_work

    def idle(self) -> bool:
        """Let the drafter learn for a moment if no request runs; return whether there is more."""
        with self.turns():
            return self.engine.idle()

    def learn(self, seconds: float) -> None:
        """Let the drafter learn while no request runs, for about so long over all calls together."""
        self._learn_s = min(self._learn_s + seconds, MAX_LEARN_S)
        is_more = True
        while is_more and self._learn_s > 0:
            start_s = time.perf_counter()
            is_more = self.idle()
            self._learn_s -= time.perf_counter() - start_s

    def _deliver(self, event: Event | None) -> None:
        """Hand an event to its request; a sink that raises ends its request, no other."""
        if event is None or (handle := self._handles.get(event.seq_id)) is None:
            return
        self.served.record(event)
        if event.finish_reason is not None:
            del self._handles[event.seq_id]
        if event.error is not None:
            handle.error = handle.error or event.error
            self.cancel(handle)
        try:
            handle.sink(event)
        except Exception as error:
            handle.error = handle.error or error
            handle.sink = lambda event: None
            self.cancel(handle)

    def _end_cancelled(self) -> None:
        while self._cancelled:
            for run in self._cancelled.pop().runs:
                self._deliver(self.engine.abort(run.seq.id))

    def _fail(self, error: BaseException) -> None:
        """End all requests after an error that may have left the engine half way through a step."""
        for seq_id, handle in [*self._handles.items()]:
            handle.error = handle.error or error
            with suppress(Exception):  # one error is enough
                self._deliver(self.engine.abort(seq_id))
        self._handles.clear()


@dataclass(slots=True, eq=False)
class RequestHandle:
    """A submitted prompt and its sequences: `news` are the events that `events` has not given yet."""

    loop: EngineLoop
    id: str
    prompt: str | None
    """The prompt's text, if it is known."""
    runs: tuple[SequenceState, ...]
    news: deque[Event]
    sink: Sink
    error: BaseException | None = None
    """The error that ended it, if one did."""

    @property
    def is_finished(self) -> bool:
        """True when every sequence has ended."""
        return all(run.seq.finish_reason is not None for run in self.runs)

    def events(self) -> Iterator[Event]:
        """Yield what each step made final, to the end. Raises what ended the request; leaving early cancels it."""
        try:
            while self.news or not self.is_finished:
                if not self.news:
                    self.loop.step(self)
                while self.news:
                    yield self.news.popleft()
            self._raise()
        finally:
            self.cancel()

    def wait(self) -> None:
        """Run to the end. Raises the error that ended the request."""
        while not self.is_finished:
            self.news.clear()
            self.loop.step(self)
        self._raise()

    def cancel(self) -> None:
        """End it, from any thread; harmless if it has ended."""
        if not self.is_finished:
            self.loop.cancel(self)

    def output(self) -> RequestOutput:
        """Return the output generated so far."""
        seq, spell = self.runs[0].seq, self.loop.spell
        scored = None
        if seq.params.prompt_logprobs is not None:
            scored = [None, *by_token(self.runs[0].prompt_logprobs, spell)]
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=seq.tokens[: seq.num_prompt],
            prompt_logprobs=scored,
            outputs=tuple(CompletionOutput.of(i, run, spell) for i, run in enumerate(self.runs)),
            finished=self.is_finished,
            num_cached_tokens=self.runs[0].seq.num_reused,
        )

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


def _each(params: SamplingParams) -> Iterator[SamplingParams]:
    """Copy and check the parameters for each of the `n` sequences; only the first one scores the prompt."""
    for i in range(params.n):
        yield replace(params, prompt_logprobs=None if i else params.prompt_logprobs)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Raise a Ctrl-C inside only at the end: a step that is half done would break all sequences."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield
        return
    caught = []
    signal.signal(signal.SIGINT, lambda *_: caught.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if caught:
            signal.raise_signal(signal.SIGINT)
