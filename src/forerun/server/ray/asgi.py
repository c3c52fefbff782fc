"""An application's answer as parts that can be sent to another process, and the request it answers.

The head of an answer goes with the first part of its body: what has not begun to stream can be asked again elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Scope


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is handed to a replica, its body apart."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    client: tuple[str, int] | None = None
    scheme: str = "http"

    @classmethod
    def of(cls, scope: Scope) -> Request:
        """Take what matters of a scope."""
        client = scope.get("client")
        return cls(
            scope["method"],
            scope["path"],
            scope.get("query_string", b""),
            tuple((bytes(name), bytes(value)) for name, value in scope["headers"]),
            client and (client[0], client[1]),
            scope.get("scheme", "http"),
        )

    def scope(self) -> dict[str, Any]:
        """Make the scope again."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": self.scheme,
            "path": self.path,
            "raw_path": self.path.encode("utf-8", "surrogateescape"),
            "query_string": self.query,
            "root_path": "",
            "headers": [*self.headers],
            "client": self.client,
            "server": None,
        }


class Part(NamedTuple):
    """Part of an answer; the first one has the status and the headers."""

    body: bytes
    is_last: bool
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def answer(app: ASGIApp, request: Request, body: bytes) -> AsyncIterator[Part]:
    """Run an application on a request, and yield its answer as it comes, what came together in one part.

    Leaving the loop tells the application that the client has gone. Raises what the application raises.
    """
    queue: asyncio.Queue[Message | None] = asyncio.Queue()
    has_gone, asked = asyncio.Event(), False

    async def receive() -> Message:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await has_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        queue.put_nowait(message)

    async def run() -> None:
        try:
            await app(request.scope(), receive, send)
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        async for part in _parts(queue):
            yield part
        await task
    finally:
        has_gone.set()
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):  # told above, if anyone still listens
            await task


async def _parts(queue: asyncio.Queue[Message | None]) -> AsyncIterator[Part]:
    """Join messages to parts until the answer is complete or the application has ended."""
    status, headers = 0, tuple[tuple[bytes, bytes], ...]()
    while (message := await queue.get()) is not None:
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = tuple((bytes(name), bytes(value)) for name, value in message["headers"])
            continue
        bodies, is_last = [message.get("body", b"")], not message.get("more_body", False)
        while not is_last and not queue.empty():
            if (message := queue.get_nowait()) is None:
                return
            bodies.append(message.get("body", b""))
            is_last = not message.get("more_body", False)
        yield Part(b"".join(bodies), is_last, status, headers)
        status, headers = 0, ()
        if is_last:
            return
