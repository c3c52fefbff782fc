"""What lies between uvicorn and the routes: bodies within bounds, the key, streams that watch their client."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.core.errors import short_repr
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError

STALLED_S = 60.0
"""A client that takes nothing for so long has gone."""
MIN_VALUES, VALUE_NBYTES = 10_000, 40
"""A body may have one value for so many of the bytes that it may have, and so many in any case."""
PART_NBYTES = 1 << 18
"""Bytes of an answer that are sent at once."""
OPEN_ROUTES = frozenset({"/health", "/v1/health"})
"""Routes that need no key."""
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json")
"""A page of elsewhere may send texts and forms without asking, but not this."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SLICE = 4096
"""Entries of a list that are written at once: no other thread runs meanwhile."""


def to_json(document: object) -> bytes:
    """JSON in UTF-8; a lone surrogate stays an escape."""
    return "".join(_pieces(document)).encode("utf-8", "backslashreplace")


def _pieces(document: object) -> Iterator[str]:
    """JSON part by part where an object's own lists are long."""
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


def _entries(found: list[object]) -> str:
    """The entries of a list; an object that stands there many times is written once."""
    known = {id(one): one for one in found}
    if len(known) > len(found) // 4:
        return _ENCODER.encode(found)[1:-1]
    texts = {key: _ENCODER.encode(one) for key, one in known.items()}
    return ",".join([texts[id(one)] for one in found])


def _is_long(value: object) -> bool:
    return isinstance(value, list) and len(value) > _SLICE


class Answer(Response):
    """Sends JSON. A long one goes in parts: to hand over 10 MB takes the event loop 5 to 40 ms."""

    media_type = "application/json"

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
            async with asyncio.timeout(STALLED_S):
                await send({"type": "http.response.body", **part})
            await asyncio.sleep(
                0
            )  # `send` lets no one else run while the client takes all there is


def answer(document: object) -> Response:
    """An answer of JSON."""
    return Answer(to_json(document))


def refusal(error: ApiError, path: str = "") -> Response:
    """The answer that an error is, in the form of the API that the path belongs to."""
    return Response(
        to_json(error.body(path)), error.status, dict(error.headers), "application/json"
    )


async def read_bytes(request: Request, config: ServerConfig) -> bytes:
    """A request's body. Raises ApiError for one that is not called JSON, too large or too slow."""
    kind = request.headers.get("content-type", "")
    if not _JSON.fullmatch(kind.partition(";")[0].strip().lower()):
        raise ApiError(
            415,
            f"the body is sent as {short_repr(kind) if kind else 'of no type'}, it must be JSON: add the header "
            "'content-type: application/json' (curl: -H 'content-type: application/json')",
        )
    try:
        async with asyncio.timeout(config.body_timeout):
            body = await _read(request, config.max_body_nbytes)
    except TimeoutError:
        message = f"the body did not arrive within {config.body_timeout:g} s"
        raise ApiError(408, message, headers={"connection": "close"}) from None
    request.state.nbytes = len(body)
    return body


def to_object(body: bytes, config: ServerConfig) -> dict[str, Any]:
    """The JSON object in a body. Raises ApiError if it is none."""
    _check_values(body, max(MIN_VALUES, config.max_body_nbytes // VALUE_NBYTES))
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object")
    return found


def body_nbytes(request: Request) -> int:
    """The size of the body that was read."""
    return int(request.state.nbytes)


def stated_nbytes(request: Request) -> int:
    """The size of the body that comes, as far as it is told."""
    stated = request.headers.get("content-length", "0")
    return int(stated) if stated.isdecimal() else 0


def _check_values(body: bytes, most: int) -> None:
    """Raise ApiError for JSON of more values than a request can need: to read and check them would stop all others.

    Values are parted by commas; those in texts are not counted. numpy lets other threads run meanwhile.
    """
    if body.count(b",") <= most:
        return
    bare = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_text = np.bitwise_xor.accumulate((bare == ord('"')).view(np.uint8)).view(np.bool_)
    if np.count_nonzero((bare == ord(",")) & ~is_text) > most:
        raise ApiError(400, f"the body has more than {most} values, which this server allows")


async def _read(request: Request, limit: int) -> bytes:
    too_large = ApiError(
        413,
        f"the body is larger than {limit / 1e6:g} MB, which this server allows (--max-body-mb)",
    )  # the connection stays, and takes the rest of the body: a client may read only when it has sent all
    if stated_nbytes(request) > limit:
        raise too_large
    parts, nbytes = [], 0
    async for part in request.stream():
        nbytes += len(part)
        if nbytes > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


class Guarded:
    """Lets only those in who send the key, `Authorization: Bearer KEY` or `X-Api-Key: KEY`."""

    def __init__(self, app: ASGIApp, api_key: str, opened: Collection[str] = OPEN_ROUTES) -> None:
        """`opened` are the paths that need no key."""
        self.app, self.api_key, self.opened = app, api_key.strip().encode(), opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in self.opened or self._knows(scope):
            await self.app(scope, receive, send)
            return
        error = ApiError(
            401,
            "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            type="authentication_error",
            headers={"www-authenticate": "Bearer"},
        )
        await refusal(error, scope["path"])(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = dict(scope["headers"])
        word, _, key = given.get(b"authorization", b"").partition(b" ")
        keys = [key.strip()] if word.lower() == b"bearer" else []
        keys.append(given.get(b"x-api-key", b""))
        return any([hmac.compare_digest(key, self.api_key) for key in keys])  # noqa: C419  # all


class EventStream(Response):
    """Sends what an iterator gives as it comes; when the client goes, `leave` is called and the iterator ends."""

    def __init__(self, chunks: AsyncIterator[bytes], leave: Callable[[], object]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self.chunks, self.leave = chunks, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, the chunks and the end."""
        async with watched(receive, self.leave):
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
            async for chunk in self.chunks:
                async with asyncio.timeout(STALLED_S):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def watched(receive: Receive, leave: Callable[[], object]) -> AsyncIterator[None]:
    """Inside, a client that goes away has `leave` called, and so has an error. The body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    task = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        leave()
        raise
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
