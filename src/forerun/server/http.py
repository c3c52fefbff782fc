"""Answers as they are sent: JSON, in parts where it is long, and streams that watch their client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

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
_SLICE = 4096
"""Entries of a list that are written at once: no other thread runs meanwhile."""


def to_json(document: object) -> bytes:
    """Write JSON in UTF-8; a lone surrogate stays an escape, as do ends of lines that only some readers know."""
    text = "".join(_pieces(document))
    if not text.isascii():
        for letter, escape in _LINE_ENDS.items():
            text = text.replace(letter, escape)
    return text.encode("utf-8", "backslashreplace")


def _pieces(document: object) -> Iterator[str]:
    """Write JSON part by part where an object's own lists are long."""
    encode = _ENCODER.encode
    if not (isinstance(document, dict) and any(map(_is_long, document.values()))):
        yield encode(document)
        return
    start = "{"
    for key, value in document.items():
        yield f"{start}{encode(key)}:"
        start = ","
        if not _is_long(value):
            yield encode(value)
            continue
        slices = (value[i : i + _SLICE] for i in range(0, len(value), _SLICE))
        yield "["
        yield ",".join(map(_entries, slices))
        yield "]"
    yield "}"


def _entries(entries: list[object]) -> str:
    """Write the entries of a list; an object that stands there many times is written once."""
    distinct = {id(one): one for one in entries}
    if len(distinct) > len(entries) // 4:
        return _ENCODER.encode(entries)[1:-1]
    texts = {key: _ENCODER.encode(one) for key, one in distinct.items()}
    return ",".join([texts[id(one)] for one in entries])


def _is_long(value: object) -> bool:
    return isinstance(value, list) and len(value) > _SLICE


class JsonResponse(Response):
    """Sends JSON. A long one goes in parts: to hand over 10 MB takes the event loop 5 to 40 ms."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Write the document."""
        return to_json(content)

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
