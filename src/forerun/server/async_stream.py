"""What comes of a request of `AsyncLLM`, as it comes: events, or outputs that grow."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from forerun.core.params import RequestOutputKind
from forerun.core.types import Event
from forerun.engine.outputs import CompletionOutput, RequestOutput, by_token
from forerun.server.async_request import AsyncRequest, StreamEvent

T = TypeVar("T")
Submit = Callable[[], Awaitable[AsyncRequest]]


class _Stream(AsyncIterator[T], Generic[T]):
    """What is read of a request, which ends when this does: by `aclose`, or when it is garbage-collected."""

    def __init__(self, submit: Submit) -> None:
        """`submit` is called with the first event."""
        self._submit = submit
        self._request: AsyncRequest | None = None
        self._batches: AsyncIterator[list[StreamEvent]] | None = None
        self._waiting: deque[T] = deque()
        self._is_closed = False

    def _read(self, request: AsyncRequest, batch: Sequence[StreamEvent]) -> Sequence[T]:
        raise NotImplementedError

    async def __anext__(self) -> T:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            if self._request is None or self._batches is None:
                self._request = await self._submit()
                self._batches = self._request.events()
            while not self._waiting:
                self._waiting.extend(self._read(self._request, await anext(self._batches)))
        except BaseException:
            self._end()
            raise
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """End the request before the engine's next step; harmless if it has ended."""
        self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        if self._request is not None:
            self._request.cancel()


class AsyncStream(_Stream[Event]):
    """The events of a request."""

    def _read(self, request: AsyncRequest, batch: Sequence[StreamEvent]) -> Sequence[Event]:
        return [one.event for one in batch]


class AsyncAnswer(_Stream[RequestOutput], Coroutine[Any, Any, RequestOutput]):
    """The output of a request: whole, where it is awaited; in `async for`, as it grows."""

    def __init__(
        self, submit: Submit, kind: RequestOutputKind, request_id: str | None = None
    ) -> None:
        """`kind` says what the outputs of the loop hold, `request_id` what they are called."""
        super().__init__(submit)
        self._kind, self._id = kind, request_id
        self._events: dict[int, list[Event]] = {}
        """By completion: what came of it, with DELTA since the last output."""
        self._ended: set[int] = set()
        self._whole: Coroutine[Any, Any, RequestOutput] | None = None

    def _read(self, request: AsyncRequest, batch: Sequence[StreamEvent]) -> Sequence[RequestOutput]:
        for one in batch:
            self._events.setdefault(one.completion, []).append(one.event)
            if one.event.finish_reason is not None:
                self._ended.add(one.completion)
        is_over = len(self._ended) == len(request.runs)
        if self._kind is RequestOutputKind.FINAL_ONLY and not is_over:
            return []
        output = replace(request.handles[0].output(), finished=is_over)
        if self._id is not None:
            output = replace(output, request_id=self._id)
        if self._kind is RequestOutputKind.DELTA or not is_over:
            made = (self._so_far(request, one) for one in output.outputs)
            output = replace(output, outputs=tuple(one for one in made if one is not None))
        if self._kind is RequestOutputKind.DELTA:
            self._events.clear()
        return [output]

    def _so_far(self, request: AsyncRequest, one: CompletionOutput) -> CompletionOutput | None:
        """Make a completion of its events: the engine has gone on meanwhile. None: there is nothing new of it."""
        is_delta = self._kind is RequestOutputKind.DELTA
        if not (events := self._events.get(one.index, [])) and is_delta:
            return None
        scored = [each for event in events for each in event.logprobs or ()]
        is_over = one.index in self._ended
        return replace(
            one,
            text="".join(event.text for event in events),
            token_ids=tuple(token for event in events for token in event.token_ids),
            logprobs=one.logprobs and by_token(scored, request.handles[0].loop.token_text),
            finish_reason=one.finish_reason if is_over else None,
            stop_reason=one.stop_reason if is_over else None,
        )

    async def _to_the_end(self) -> RequestOutput:
        self._kind = RequestOutputKind.FINAL_ONLY
        outputs = [output async for output in self]
        if not outputs:
            raise RuntimeError("this request was read to its end, or closed: make another one")
        return outputs[0]

    @property
    def _coroutine(self) -> Coroutine[Any, Any, RequestOutput]:
        if self._whole is None:
            self._whole = self._to_the_end()
        return self._whole

    def __await__(self) -> Generator[Any, Any, RequestOutput]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """Go on with what awaits the whole output, as a task does."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error there."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End the request."""
        if self._whole is not None:
            self._whole.close()
        self._end()
