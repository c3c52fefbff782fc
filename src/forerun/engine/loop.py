"""The one owner of an engine: takes requests, steps the engine, and routes its events to who asked.

Several threads may use a loop. The thread that waits for a request steps the engine, for all requests, so the
loop needs no thread of its own:

    request = loop.submit(prompt_ids, params)
    for event in request: ...

What others submit and cancel while a thread steps lies in a queue that it reads after its step. A request ends
by itself, by `cancel`, when it is dropped, or by an error in a step, which ends every running request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from queue import SimpleQueue
from typing import Self
from weakref import ref

from forerun.core.params import SamplingParams
from forerun.core.types import Event
from forerun.engine.engine import Engine
from forerun.engine.intake import NewText
from forerun.engine.lock import EngineLock
from forerun.engine.metrics import RequestCounts
from forerun.engine.outputs import CompletionOutput, RequestOutput, TokenText, by_token
from forerun.engine.sequence import SequenceState
from forerun.system.signals import handled_later

Sink = Callable[[Event], object]
"""Called with each event of a request, by the thread that steps; should return at once."""


class Request(Iterator[Event]):
    """A submitted prompt: its sequences, its events, its output and its end.

    It yields what each step makes final, to one thread or several. Without a sink it ends when it is dropped.
    """

    def __init__(
        self,
        loop: EngineLoop,
        id: str,
        prompt: str | None,
        runs: tuple[SequenceState, ...],
        sink: Sink | None,
    ) -> None:
        self.loop, self.id = loop, id
        self.prompt = prompt
        """The prompt's text, if it is known."""
        self.runs = runs
        """Its sequences."""
        self.num_running = len(runs)
        """How many of them have not ended, or have a last event that has not been delivered."""
        self.unread: deque[Event] = deque()
        """Events that have not been read yet."""
        self.is_kept = sink is not None
        """It goes on when the caller drops it."""
        self.sink: Sink = self.unread.append if sink is None else sink
        self.error: BaseException | None = None
        """The error that ended it, if one did."""

    @property
    def is_finished(self) -> bool:
        """True when every sequence has ended and its last event has been delivered."""
        return not self.num_running

    def __next__(self) -> Event:
        """Return the next event, from a step if there is none. Raises what ended the request."""
        try:
            while True:
                is_finished = self.is_finished  # asked first: then all its events are there
                with suppress(IndexError):  # there is none, or another thread has taken it
                    return self.unread.popleft()
                if is_finished:
                    raise self.error or StopIteration
                self.loop.step(self)
        except BaseException:
            self.close()
            raise

    def wait_for_grammar(self) -> Self:
        """Wait until its grammar is compiled; prompts are read meanwhile. Raises RequestError if it cannot be."""
        run = self.runs[0]
        try:
            while not (run.grammar_is_ready() or self.is_finished):
                self.loop.step(self)
            if run.grammar_is_ready() and (compiling := run.pipeline.compiling) is not None:
                compiling.compiled.result()
        except BaseException:  # the caller does not get it
            self.cancel()
            raise
        return self

    def wait(self) -> None:
        """Run to the end. Raises the error that ended the request."""
        with handled_later() as hand_on_signals:  # for all steps: looking for handlers takes time
            while not self.is_finished:
                self.unread.clear()
                self.loop.step(self)
                hand_on_signals()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """End it, from any thread, keeping what it has; its last events say so. Harmless if it has ended."""
        if not self.is_finished:
            self.loop.tell(tuple(run.seq.id for run in self.runs))

    def close(self) -> None:
        """End it, if it has not ended, and give no more events."""
        self.sink = _ignore
        self.unread.clear()
        self.cancel()

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has one already."""
        self.error = self.error or error
        self.cancel()

    def output(self) -> RequestOutput:
        """Return the output generated so far."""
        seq, token_text = self.runs[0].seq, self.loop.token_text
        scored = None
        if seq.params.prompt_logprobs is not None:
            scored = [None, *by_token(self.runs[0].prompt_logprobs, token_text)]
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=seq.tokens[: seq.num_prompt],
            prompt_logprobs=scored,
            outputs=tuple(
                CompletionOutput.of(i, run, token_text) for i, run in enumerate(self.runs)
            ),
            finished=self.is_finished,
            num_cached_tokens=seq.num_reused,
        )


class EngineLoop:
    """Runs an engine for many requests."""

    def __init__(
        self,
        engine: Engine,
        new_text: NewText = lambda params: None,
        lock: EngineLock | None = None,
        token_text: TokenText = lambda token_id: None,
    ) -> None:
        """`token_text` gives the text of one token; `lock` is that of the engine's model."""
        self.engine = engine
        self.model_lock = lock or EngineLock()
        self.served = RequestCounts()
        self.token_text = token_text
        self._new_text = new_text
        self._ids = count()
        self._inbox = SimpleQueue[Request | tuple[int, ...]]()
        """Requests to queue and ids of sequences to end: garbage collection and handlers of signals may add to it."""
        self._requests: dict[int, Callable[[], Request | None]] = {}
        """By sequence whose end has not been delivered: its request, None once the caller has dropped it."""
        self._raised: BaseException | None = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep others from the engine, once all that they have submitted, cancelled and dropped is done.

        Nested calls pass.
        """
        try:
            with self.model_lock.held():
                self._catch_up()
                yield
        finally:
            self._catch_up_if_free()  # what came meanwhile

    @property
    def has_work(self) -> bool:
        """True while there is something to do in a step."""
        return self.engine.has_work or not self._inbox.empty()

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        sink: Sink | None = None,
        *,
        prompt: str | None = None,
        num_instructions: int = 0,
    ) -> Request:
        """Queue a prompt, `params.n` sequences of it. Raises RequestError and CapacityError.

        Without a `sink` the events are kept for iteration over the request; dropping the request then cancels it.
        `prompt` is the text of the ids, of which `num_instructions` come before a user's words.
        """
        runs = tuple(
            self.engine.intake.sequences(prompt_ids, params, self._new_text, num_instructions)
        )
        request = Request(self, str(next(self._ids)), prompt, runs, sink)
        try:
            self.tell(request)
        except BaseException:  # the caller does not get it
            request.cancel()
            raise
        return request

    def end_all(self) -> None:
        """End all requests, keeping what they have."""
        self.tell(tuple(self._requests))

    def step(self, waiting: Request | None = None) -> bool:
        """Run one pass for all requests; return True while there is work. An error ends all requests, and is raised.

        Nothing is done if other threads' steps have brought what `waiting` waits for.
        """
        with self.lock():
            if waiting is not None and (waiting.is_finished or waiting.unread):
                return self.has_work
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
            return self.has_work

    def tell(self, item: Request | tuple[int, ...]) -> None:
        """Queue a request, or end sequences by their ids: now, or after the step of the thread that has the engine.

        Waits for nothing; harmless for sequences that have ended.
        """
        self._inbox.put(item)
        self._catch_up_if_free()

    def _catch_up_if_free(self) -> None:
        """Catch up, unless a thread has the engine: it does so when it releases it."""
        while not self._inbox.empty():  # another thread may add to it, and find the lock taken
            with self.model_lock.held(waits=False) as is_held:
                if not is_held:
                    return
                self._catch_up()

    def _catch_up(self) -> None:
        """Do what was asked for, and end the requests that were dropped."""
        while not self._inbox.empty():  # the holder of the lock alone takes from it
            item = self._inbox.get_nowait()
            if isinstance(item, Request):
                self._queue(item)
            else:
                self._end(item)
        self._end(seq_id for seq_id, find in [*self._requests.items()] if find() is None)

    def _queue(self, request: Request) -> None:
        find = (lambda: request) if request.is_kept else ref(request)
        for run in request.runs:
            self._requests[run.seq.id] = find
            self.engine.queue(run)
        self.served.prompt_tokens += request.runs[0].seq.num_prompt

    def _deliver(self, event: Event) -> None:
        """Hand an event to its request; a sink that raises ends its request, no other."""
        find = self._requests.get(event.seq_id)
        if find is None:
            return
        self.served.record(event)
        request = find()
        if request is not None:
            if event.error is not None:
                request.fail(event.error)
            try:
                request.sink(event)
            except BaseException as error:
                request.sink = _ignore
                request.fail(error)
                from asyncio import CancelledError

                if not isinstance(error, Exception | CancelledError | GeneratorExit):
                    self._raised = (
                        error  # it is meant for the process: raised when all have their events
                    )
        if event.finish_reason is not None:
            del self._requests[event.seq_id]
            if request is not None:
                request.num_running -= 1

    def _end(self, seq_ids: Iterable[int]) -> None:
        for seq_id in seq_ids:
            if (event := self.engine.abort(seq_id)) is not None:
                self._deliver(event)

    def _fail(self, error: BaseException) -> None:
        """End all requests after an error that may have left the engine half way through a step."""
        requests = [(seq_id, find()) for seq_id, find in self._requests.items()]
        for seq_id, request in requests:
            if request is not None:
                request.error = request.error or error
            with suppress(Exception):  # one error is enough
                self._end([seq_id])
        self._requests.clear()
        for _, request in requests:
            if request is not None:
                request.num_running = 0


def _ignore(event: Event) -> None:
    """Be the sink in the place of one that has raised."""
