"""Answers as they are sent: JSON, in parts where it is long, and streams that watch their client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.server.errors import ApiError

T = TypeVar("T")

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
"""Types of answers that are sent as they come."""
PART_NBYTES = 1 << 18
"""Bytes of an answer that are sent at once."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LINE_ENDS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Letters at which Python's `splitlines`, and clients that read streams with it, end a line."""
_MOST = 4096
"""Entries of lists and objects that are written at once: no other thread runs meanwhile."""
_DEPTH = 8
"""Levels of a document that are written one by one."""


def to_json(document: object) -> bytes:
    """Write JSON in UTF-8; a lone surrogate stays an escape, as do ends of lines that only some readers know."""
    return _utf8(_ENCODER.encode(document))


def json_parts(document: object) -> Iterator[bytes]:
    """Yield the same part by part, so that other threads run in between; an iterator becomes a list."""
    return map(_utf8, _pieces(document, _DEPTH))


def _utf8(text: str) -> bytes:
    if not text.isascii():
        for letter, escape in _LINE_ENDS.items():
            text = text.replace(letter, escape)
    return text.encode("utf-8", "backslashreplace")


def _pieces(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, Iterator):
        yield "["
        for number, one in enumerate(value):
            yield "," * (number > 0)
            yield from _pieces(one, depth - 1)
        yield "]"
    elif not depth or not isinstance(value, list | dict) or not _is_long(value):
        yield _ENCODER.encode(value)
    elif isinstance(value, dict):
        start = "{"
        for key, one in value.items():
            yield f"{start}{_ENCODER.encode(key)}:"
            start = ","
            yield from _pieces(one, depth - 1)
        yield "}"
    else:
        yield "["
        yield from _entries(value, depth)
        yield "]"


def _entries(entries: list[object], depth: int) -> Iterator[str]:
    """Write the entries of a list; an object that stands there many times is written once."""
    middle = len(entries) // 2
    if not middle:
        yield from _pieces(entries[0], depth - 1)
    elif _is_long(entries):
        yield from _entries(entries[:middle], depth)
        yield ","
        yield from _entries(entries[middle:], depth)
    elif len(distinct := {id(one): one for one in entries}) > len(entries) // 4:
        yield _ENCODER.encode(entries)[1:-1]
    else:
        texts = {key: _ENCODER.encode(one) for key, one in distinct.items()}
        yield ",".join([texts[id(one)] for one in entries])


def _is_long(value: list[object] | dict[str, object]) -> bool:
    """Tell whether a document has so many entries, on all of its levels, that it is not written at once."""
    count, waiting = 0, list[object]([value])
    while waiting and count <= _MOST:
        one = waiting.pop()
        if isinstance(one, Iterator):
            return True
        if isinstance(one, list | dict):
            count += len(one)
            if count <= _MOST:
                waiting += one if isinstance(one, list) else one.values()
    return count > _MOST


class JsonResponse(Response):
    """Sends JSON. A long one goes in parts: to hand over 10 MB takes the event loop 5 to 40 ms."""

    media_type = "application/json"

    @classmethod
    async def written(cls, new_document: Callable[[], object]) -> Self:
        """Make one whose document may take long to make and to write, in another thread."""
        return await asyncio.to_thread(lambda: cls(new_document()))

    def render(self, content: object) -> bytes:
        """Write the document."""
        return b"".join(json_parts(content))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and the body."""
        body = memoryview(self.body)
        if len(body) <= PART_NBYTES:
            await super().__call__(scope, receive, send)
            return
        head = {"type": "http.response.start", "status": self.status_code}
        await send(head | {"headers": self.raw_headers})
        for start in range(0, len(body), PART_NBYTES):
            stop = start + PART_NBYTES
            part = {"body": bytes(body[start:stop]), "more_body": stop < len(body)}
            await send({"type": "http.response.body", **part})
            # `send` lets no one else run while the client takes all there is
            await asyncio.sleep(0)


class RowsResponse(Response):
    """Sends JSON with iterators for lists: what an entry takes is there only until the client has taken it."""

    media_type = "application/json"

    def __init__(self, document: object) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pieces = json_parts(document)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and the body."""
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        while part := await asyncio.to_thread(self._part):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _part(self) -> bytes:
        part = bytearray()
        for piece in self._pieces:
            part += piece
            if len(part) >= PART_NBYTES:
                break
        return bytes(part)


class ErrorResponse(JsonResponse):
    """Sends an error, and leaves its reason for the log."""

    def __init__(self, error: ApiError, path: str) -> None:
        super().__init__(error.body(path), error.status, dict(error.headers))
        self._reason = error.reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and the body."""
        if (entry := scope.get("state", {}).get("entry")) is not None:
            entry.reason = self._reason
        await super().__call__(scope, receive, send)


def error_response(error: ApiError, path: str = "") -> Response:
    """Answer with an error, in the form of the API that the path belongs to."""
    return ErrorResponse(error, path)


class EventStreamResponse(Response):
    """Send what an iterator gives as it comes; when the client goes, `on_disconnect` is called and it ends."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        on_disconnect: Callable[[], object],
        ping: Callable[[], bytes] = bytes,
        ping_s: float = 0.0,
        media_type: str = EVENTS,
    ) -> None:
        """What `ping` writes is sent where nothing else was for `ping_s` seconds; never for 0 and less."""
        # no proxy may keep the events back until there are many: nginx asks
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self.chunks, self.on_disconnect = chunks, on_disconnect
        self._ping, self._ping_s = ping, ping_s
        self._sent_s = 0.0
        self._is_sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, the chunks and the end."""
        async with cancelled_on_disconnect(receive, self.on_disconnect):
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
            self._sent_s = time.monotonic()
            async with in_background(self._send_pings(send)):
                async for chunk in self.chunks:
                    await self._send(send, chunk)
            await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, chunk: bytes) -> None:
        self._is_sending = True
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._is_sending, self._sent_s = False, time.monotonic()

    async def _send_pings(self, send: Send) -> None:
        while self._ping_s > 0:
            quiet_s = time.monotonic() - self._sent_s
            if quiet_s >= self._ping_s and not self._is_sending:
                await self._send(send, self._ping())
            await asyncio.sleep(max(self._ping_s - quiet_s, 0.0) or self._ping_s)


@asynccontextmanager
async def cancelled_on_disconnect(
    receive: Receive, on_disconnect: Callable[[], object]
) -> AsyncIterator[None]:
    """Call `on_disconnect` where the client goes away inside, or at an error. The body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_disconnect()

    async with in_background(watch()):
        try:
            yield
        except BaseException:
            on_disconnect()
            raise


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work, which ends where the client goes away: what has not begun is not begun then.

    The body must have been read. Raises ClientDisconnect.
    """
    task = asyncio.create_task(work)
    async with cancelled_on_disconnect(request.receive, task.cancel):
        await asyncio.wait([task])
        if task.cancelled():
            raise ClientDisconnect
        return task.result()


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something else until the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
