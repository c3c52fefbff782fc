"""The gateway: takes requests from clients, hands each to a replica, and asks another one where the first was lost.

An application for any ASGI server: Ray's own (`serve run forerun.server.ray:app`) or ours (`forerun serve --replicas`).
What had not begun to be sent when its replica died is answered by another; what had ends with an error that says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RequestCancelledError,
)
from starlette.requests import ClientDisconnect
from starlette.requests import Request as StarletteRequest
from starlette.types import Receive, Scope, Send

from forerun.server.bodies import LARGE, received
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, is_anthropic, loading, of_status
from forerun.server.http import STALLED_S, cancelled_on_disconnect, error_response, to_json
from forerun.server.ray.asgi import Part, Request
from forerun.server.ray.prefix import Route, route_of

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

TRIES = 3
"""Replicas that a request may lose before it is given up."""
HEALTH_S = 2.0
"""How long `/health` waits for a replica."""
SESSION, SERVED_BY = b"x-session-id", b"x-forerun-replica"
"""Headers of a request and of its answer."""
_log = logging.getLogger(__name__)


class Lost(Exception):
    """The replica of a request is gone."""


class Gateway:
    """Answers what a replica answers."""

    def __init__(self, replicas: DeploymentHandle, config: ServerConfig) -> None:
        self._replicas = replicas.options(method_name="answer", stream=True)
        self.config = config
        self._tasks: set[asyncio.Task[object]] = set()
        self.num_retried = 0
        """Requests that were asked again, once for each time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; nothing is done for the server's start and end."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._answer(scope, receive, send)
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            self._tasks.discard(task)

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._tasks)

    def cancel_all(self) -> None:
        """End what runs: the time for draining is over."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on until a replica has answered it. Raises ApiError."""
        request, body = Request.of(scope), b""
        if scope["method"] == "POST":
            body = await received(StarletteRequest(scope, receive), self.config)
        route, sending = await _route(request, body), _Sending(request.path, send)
        for _ in range(TRIES):
            try:
                await self._ask(request, body, route, receive, sending)
                return
            except Lost:
                if sending.has_begun:
                    await sending.fail(lost())
                    return
                self.num_retried += 1
                _log.warning("replica %s was lost, its request is asked again", route.replica)
                route = Route(route.blocks, route.session, (*route.avoid, route.replica or ""))
        raise lost()

    async def _ask(
        self, request: Request, body: bytes, route: Route, receive: Receive, sending: _Sending
    ) -> None:
        """Ask one replica. Raises Lost if it is gone before the answer is complete, ApiError."""
        response = self._replicas.remote(request, body, route=route)
        try:
            async with cancelled_on_disconnect(receive, response.cancel):
                async for part in self._parts(response, request, route):
                    sending.replica = route.replica or ""
                    await sending.part(part)
        except (RequestCancelledError, asyncio.CancelledError):
            response.cancel()
            raise ClientDisconnect from None
        except BackPressureError as error:
            raise of_status(429, "every replica has as many requests as it takes") from error
        except RayTaskError as error:
            _log.error("a replica failed: %s", error)
            raise of_status(500, "The replica failed while it worked on this request") from error
        except (RayError, DeploymentUnavailableError) as error:
            raise Lost from error
        if not sending.is_complete:
            raise Lost

    async def _parts(self, response: Any, request: Request, route: Route) -> AsyncIterator[Part]:
        """Yield an answer's parts. Raises ApiError where no replica took the request in time."""
        limit_s = HEALTH_S if request.path.endswith("/health") else self.config.load_timeout
        first = asyncio.ensure_future(anext(response, None))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first), limit_s)
        if not first.done() and route.replica is None:
            response.cancel()
            with suppress(Exception, asyncio.CancelledError):
                await first
            raise loading(f"no replica could take the request within {limit_s:g} s")
        part = await first
        while part is not None:
            yield part
            part = await anext(response, None)


class _Sending:
    """An answer on its way to the client."""

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self.replica = ""
        self.has_begun = self.is_complete = self._is_stream = False

    async def part(self, part: Part) -> None:
        """Send the next part."""
        async with asyncio.timeout(STALLED_S):
            if not self.has_begun:
                self.has_begun = True
                kind = dict(part.headers).get(b"content-type", b"")
                self._is_stream = kind.startswith(b"text/event-stream")
                head = {"type": "http.response.start", "status": part.status}
                named = (SERVED_BY, self.replica.encode())
                await self._send(head | {"headers": [*part.headers, named]})
            body = {"type": "http.response.body", "body": part.body}
            await self._send(body | {"more_body": not part.is_last})
            self.is_complete = part.is_last

    async def fail(self, error: ApiError) -> None:
        """End a stream with an error; anything else just ends, short of its stated length."""
        if not self._is_stream:
            raise ConnectionError(error.message)
        await self.part(Part(_event(error, self._path), is_last=True))


def lost() -> ApiError:
    """Say that the replica is gone."""
    return ApiError(
        503,
        "The replica that worked on this request was lost: send it again",
        code="replica_lost",
        type="unavailable_error",
        headers={"retry-after": "1"},
    )


def _event(error: ApiError, path: str) -> bytes:
    """Write an error as the last event of a path's stream."""
    if is_anthropic(path):
        return b"event: error\ndata: %s\n\n" % to_json(error.anthropic())
    if path.endswith("/responses"):
        said = {"type": "error", "code": error.code, "message": error.message, "param": None}
        return b"event: error\ndata: %s\n\n" % to_json(said)
    return b"data: %s\n\n" % to_json(error.document())


async def _route(request: Request, body: bytes) -> Route:
    """Read from a request where it should go; of what is no JSON object the replica will say so."""
    session = dict(request.headers).get(SESSION, b"").decode("latin-1")
    if not body:
        return Route(session=session)

    def read() -> Route:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        return route_of(document if isinstance(document, dict) else {}, session)

    return read() if len(body) < LARGE else await asyncio.to_thread(read)


async def _lifespan(receive: Receive, send: Send) -> None:
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})
