"""A submitted prompt as its caller sees it: its events, its output, and its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, Self
from weakref import finalize

from forerun.core.types import Event
from forerun.engine.outputs import CompletionOutput, RequestOutput, TokenText, by_token
from forerun.engine.sequence import SequenceState

Sink = Callable[[Event], object]
"""Called with each event of a request, by the thread that steps; should return at once."""


class Runner(Protocol):
    """What runs requests: `engine.loop.EngineLoop`."""

    token_text: TokenText

    def step(self, waiting: RequestHandle | None = None) -> bool:
        """Run one pass for all requests, unless the one that waits has unread events."""
        ...

    def is_running(self, seq_id: int) -> bool:
        """Tell whether a sequence's end has yet to be delivered."""
        ...

    def cancel(self, seq_ids: Iterable[int]) -> None:
        """End sequences."""
        ...


class RequestHandle:
    """A submitted prompt and its sequences. Without a sink the request ends when this is garbage collected."""

    def __init__(self, loop: Runner, id: str, prompt: str | None, sink: Sink | None) -> None:
        self.loop, self.id = loop, id
        self.prompt = prompt
        """The prompt's text, if it is known."""
        self.runs: tuple[SequenceState, ...] = ()
        self.unread: deque[Event] = deque()
        """Events that `events` has not given yet."""
        self.sink: Sink = self.unread.append if sink is None else sink
        self.error: BaseException | None = None
        """The error that ended it, if one did."""

    def itself(self) -> RequestHandle:
        """Return it."""
        return self

    @property
    def is_finished(self) -> bool:
        """True when every sequence has ended and its last event has been delivered."""
        return not any(self.loop.is_running(run.seq.id) for run in self.runs)

    def events(self) -> EventStream:
        """Return what each step makes final, to the end. Leaving early cancels the request."""
        return EventStream(self)

    def wait_for_grammar(self) -> Self:
        """Wait until its grammar is compiled; prompts are read meanwhile. Raises RequestError if it cannot be."""
        run = self.runs[0]
        try:
            while not (run.grammar_is_ready() or self.is_finished):
                self.loop.step(self)
            if run.grammar_is_ready() and (compiling := run.pipeline.compiling) is not None:
                compiling.compiled.result()
        except BaseException:  # the caller gets no handle
            self.cancel()
            raise
        return self

    def wait(self) -> None:
        """Run to the end. Raises the error that ended the request."""
        while not self.is_finished:
            self.unread.clear()
            self.loop.step(self)
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """End it, from any thread; harmless if it has ended."""
        if not self.is_finished:
            self.loop.cancel(run.seq.id for run in self.runs)

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
            num_cached_tokens=self.runs[0].seq.num_reused,
        )


class EventStream(Iterator[Event]):
    """The events of a request, for one thread or several. To close it, or to drop it, cancels the rest."""

    def __init__(self, request: RequestHandle) -> None:
        self._request = request
        # Not `__del__`: what a signal handler raises in there is lost, and most streams have nothing to end.
        self._end = finalize(self, request.cancel)
        self._end.atexit = False

    def __next__(self) -> Event:
        """Return the next event, from a step if there is none. Raises what ended the request."""
        request = self._request
        try:
            while self._end.alive:
                is_finished = request.is_finished  # asked first: then all its events are there
                with suppress(IndexError):  # there is none, or another thread has taken it
                    return request.unread.popleft()
                if is_finished:
                    raise request.error or StopIteration
                request.loop.step(request)
            raise StopIteration
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the request, if it has not ended, and give no more events."""
        self._end()
