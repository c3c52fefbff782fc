"""The gateway: takes requests from clients, hands each to a replica, and asks another one where the first was lost.

An application for any ASGI server: Ray's own (`serve run forerun.server.ray:app`) or ours (`forerun serve --replicas`).
What had not begun to be sent when its replica died is answered by another; what had ends with an error that says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from forerun.server.async_request import Closed
from forerun.server.bodies import LARGE, received
from forerun.server.config import ServerConfig
from forerun.server.connections import STALLED_S
from forerun.server.errors import (
    ApiError,
    is_anthropic,
    is_ollama,
    loading,
    of_exception,
    of_status,
)
from forerun.server.http import EVENTS, LINES, error_response, to_json
from forerun.server.middleware import knows_key, wrong_key
from forerun.server.ray.exchange import ForwardedRequest, Head, Lease, Lost, exchange
from forerun.server.ray.metrics import joined
from forerun.server.ray.prefix import Route, route_of

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

TRIES = 3
"""Replicas that a request may lose before it is given up."""
AGAIN_S = 0.5
"""How much longer each time it waits to be asked again, but the first: until Ray knows that a replica is gone."""
SAID_AT_ONCE = ("/chat/completions", "/messages", "/responses")
"""Ends of routes whose streams begin with an event before the prompt was read."""
HEALTH_S = 2.0
"""How long `/health` waits for a replica."""
METRICS = "/metrics"
SESSION, SERVED_BY = b"x-session-id", b"x-forerun-replica"
"""Headers of a request and of its answer."""
OF_CONNECTION = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"date"})
_log = logging.getLogger(__name__)


class Gateway:
    """Answers what a replica answers."""

    def __init__(self, replicas: DeploymentHandle, config: ServerConfig) -> None:
        self._handle, self.config = replicas, config
        self._leases: set[asyncio.Task[object]] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closing = False
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

    @cached_property
    def _replicas(self) -> DeploymentHandle:
        """Make the handle that requests go by, in the event loop: its router may live there."""
        return self._handle.options(method_name="lease", stream=True)

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._tasks)

    def cancel_all(self) -> None:
        """End what runs: the time for draining is over."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on until a replica has answered it. Raises ApiError."""
        body, key = b"", self.config.api_key
        if scope["method"] == "POST":
            if key is not None and not knows_key(dict(scope["headers"]), key.strip().encode()):
                raise wrong_key()  # a replica would say so too, but only of a body that was read
            body = await received(Request(scope, receive), self.config)
        request, route = ForwardedRequest.of(scope, body), await _route(scope, body)
        sending = _Sending(scope["path"], send)
        if scope["path"] == METRICS:
            sending.replace = self._metrics
        for attempt in range(TRIES):
            try:
                await self._ask(request, route, receive, sending)
                return
            except Lost:
                if sending.has_begun:
                    break
                self.num_retried += 1
                _log.warning(
                    "replica %s was lost: its request is sent to another one", route.replica
                )
                route = Route(route.blocks, route.session, (*route.avoid, route.replica or ""))
                await asyncio.sleep(attempt * AGAIN_S)
            except Closed as error:
                if not sending.has_begun:
                    raise of_exception(error) from error
                await sending.end(of_exception(error))
                return
        if not sending.has_begun:
            raise lost()
        await sending.end(lost())

    async def _ask(
        self, request: ForwardedRequest, route: Route, receive: Receive, sending: _Sending
    ) -> None:
        """Ask one replica. Raises Lost if it is gone before the answer is complete, ApiError, ClientDisconnect."""
        lease, place = self._replicas.remote(route=route), None
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_gone(receive))
        watch.add_done_callback(lambda watched: watched.cancelled() or task.cancel())
        try:
            place = await self._place(lease, request)
            sending.replica = route.replica or ""
            async with aclosing(exchange(request, place)) as events:
                async for event in events:
                    await sending.add(event)
            route.is_over = True
            await sending.end()
        except asyncio.CancelledError:
            has_gone = watch.done()
            if not (has_gone or self._is_closing):
                raise
            task.uncancel()
            if has_gone:
                raise ClientDisconnect from None
            raise Closed("the server is shutting down") from None
        finally:
            watch.cancel()
            if place is None:
                lease.cancel()
            self._release(lease)

    async def _place(self, lease: Any, request: ForwardedRequest) -> Lease:
        """Wait for a replica. Raises ApiError where none takes the request in time, Lost where it is gone."""
        is_health = request.target.partition(b"?")[0].endswith(b"/health")
        limit_s = HEALTH_S if is_health else self.config.load_timeout
        try:
            async with asyncio.timeout(limit_s):
                place: Lease = await anext(lease)
                return place
        except TimeoutError:
            raise loading(f"no replica could take the request within {limit_s:g} s") from None
        except BackPressureError as error:
            raise of_status(
                429, "all replicas are at their limit of requests: try again later"
            ) from error
        except RayTaskError as error:
            _log.error("a replica failed: %s", error)
            raise of_status(
                500, "The replica failed during this request; see the server's log"
            ) from error
        except (RayError, DeploymentUnavailableError, StopAsyncIteration) as error:
            raise Lost from error

    async def _metrics(self) -> bytes:
        """Join the metrics of all replicas."""
        asked = self._handle.broadcast("metrics")
        found = await asked.results_async(timeout_s=HEALTH_S, return_exceptions=True)
        pages = dict(one for one in found if not isinstance(one, BaseException))
        return joined(pages, self.config.metrics_prefix, self.num_retried)

    def _release(self, lease: Any) -> None:
        """Let a lease end: the replica ends it with the request."""

        async def follow() -> None:
            with suppress(Exception):
                async for _ in lease:
                    pass

        task = asyncio.ensure_future(follow())
        self._leases.add(task)
        task.add_done_callback(self._leases.discard)


class _Sending:
    """An answer on its way to the client: a stream as it comes, anything else when it is complete."""

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self.replica = ""
        self.replace: Callable[[], Awaitable[bytes]] | None = None
        """Makes the body of an answer that is good, in place of the one that comes."""
        self.has_begun = False
        self._head, self._body = Head(500, ()), b""
        self._is_stream, self._num_events = False, 0

    async def add(self, event: Head | bytes) -> None:
        """Take what came next; the head of a stream goes with its first part.

        That goes with the second where it says nothing yet: until then another replica can be asked.
        """
        if isinstance(event, Head):
            self._head, self._body = event, b""  # of a replica that was lost, too
            kind = dict(event.headers).get(b"content-type", b"")
            self._is_stream = kind.startswith((EVENTS.encode(), LINES.encode()))
            return
        is_first = not (self._body or self.has_begun)
        self._body += event
        self._num_events += event.count(b"\n\n")
        if self._is_stream and not (is_first and self._path.endswith(SAID_AT_ONCE)):
            await self._part(is_last=False)

    async def end(self, error: ApiError | None = None) -> None:
        """Complete the answer, a stream with what went wrong as its last event."""
        if error is not None:
            self._body = _event(error, self._path, self._num_events)
        elif self.replace is not None and self._head.status == 200:
            self._body = await self.replace()
            kept = [one for one in self._head.headers if one[0] != b"content-length"]
            self._head = Head(200, (*kept, (b"content-length", b"%d" % len(self._body))))
        await self._part(is_last=True)

    async def _part(self, *, is_last: bool) -> None:
        body, self._body = self._body, b""
        async with asyncio.timeout(STALLED_S):
            if not self.has_begun:
                self.has_begun = True
                head = {"type": "http.response.start", "status": self._head.status}
                # the server that sends it on has its own words about the connection
                kept = [one for one in self._head.headers if one[0] not in OF_CONNECTION]
                await self._send(head | {"headers": [*kept, (SERVED_BY, self.replica.encode())]})
            message = {"type": "http.response.body", "body": body}
            await self._send(message | {"more_body": not is_last})


def lost() -> ApiError:
    """Say that the replica is gone."""
    return ApiError(
        503,
        "The replica of this request was lost: send the request again",
        code="replica_lost",
        type="unavailable_error",
        headers={"retry-after": "1"},
    )


def _event(error: ApiError, path: str, number: int) -> bytes:
    """Write an error as the last event of a path's stream, after so many others."""
    if is_anthropic(path):
        return b"event: error\ndata: %s\n\n" % to_json(error.anthropic())
    if path.endswith("/responses"):
        said = {"type": "error", "sequence_number": number, "param": None}
        said |= {"code": error.code, "message": error.message}
        return b"event: error\ndata: %s\n\n" % to_json(said)
    if is_ollama(path):
        return to_json(error.ollama()) + b"\n"
    return b"data: %s\n\n" % to_json(error.document())


async def _route(scope: Scope, body: bytes) -> Route:
    """Read from a request where it should go; of what is not a JSON object the replica will say so."""
    session = dict(scope["headers"]).get(SESSION, b"").decode("latin-1")
    if not body:
        return Route(session=session)

    def read() -> Route:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        return route_of(document if isinstance(document, dict) else {}, session)

    return read() if len(body) < LARGE else await asyncio.to_thread(read)


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})
