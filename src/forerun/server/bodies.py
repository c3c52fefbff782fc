"""Bodies of requests: received within bounds and parsed, large ones one after the other and off the event loop.

FastAPI checks and documents them (`schema.py`); a route of `JsonRoute` hands it what was parsed here.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar, get_type_hints

import numpy as np
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from forerun.compat.ignored_fields import collected
from forerun.core.errors import short_repr
from forerun.core.params import allowed
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, invalid
from forerun.server.schema import RequestBody
from forerun.system.device import trim_heap

T = TypeVar("T")

LARGE = 1 << 16
"""Bytes of a body from which only one is worked on at a time."""
READ_AT_ONCE, READ_S = 2, 1.0
"""Large bodies that are received at once, and how long others wait for that: a slow client must not stop them."""
MIN_VALUES, VALUE_NBYTES = 10_000, 40
"""A body may have one value for so many of the bytes that it may have, and so many in any case."""
_MOST = sys.float_info.max
_SUSPECT = re.compile(r"\\u[dD][89a-fA-F]|(?<![0-9])[0-9]{200}|[eE]\+?[0-9]{3}")
"""What a lone surrogate and a number beyond all floats have in them, as many others have."""
_SHOWN = 100
"""Letters of a field's path in an error."""
_UNASKED = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
"""Types that a page of elsewhere may send without asking first; programs send them out of habit, as curl does."""
_OF_BROWSERS = ("origin", "sec-fetch-site", "sec-fetch-mode")
"""Headers that a browser sends with every such request, and that no page can leave out."""


class JsonRequest(Request):
    """A request whose body was received and parsed: `document`, of `nbytes` bytes."""

    document: dict[str, Any]
    nbytes: int
    checked: RequestBody
    """The same as the route's model reads it."""

    @property
    def headers(self) -> Headers:
        """The client's; once it was parsed, a body is called JSON, whatever its client called it."""
        if not hasattr(self, "document"):
            return super().headers
        return Headers({**super().headers, "content-type": "application/json"})

    async def load(self, bodies: BodyQueue, config: ServerConfig) -> None:
        """Receive and parse it. Raises ApiError."""
        body = await bodies.receive(lambda: received(self, config), stated_nbytes(self))
        self.nbytes = len(body)
        if self.nbytes < LARGE:
            self.document = to_object(body, config)
        else:
            self.document = await bodies.run(lambda: to_object(body, config), self.nbytes)

    async def body(self) -> bytes:
        """Return a body that is not empty, for FastAPI to ask for `json`."""
        return b"{}"

    async def json(self) -> RequestBody:
        """Return what was parsed and checked: FastAPI checks no instance again."""
        return self.checked


class JsonRoute(APIRoute):
    """A route that reads a JSON object."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Receive, parse and check the body before FastAPI asks for what the route depends on, such as a model.

        The handler raises ApiError.
        """
        handle, body = super().get_route_handler(), get_type_hints(self.endpoint)["body"]

        async def read(plain: Request) -> Response:
            served, request = plain.app.state.served, JsonRequest(plain.scope, plain.receive)
            await request.load(served.bodies, served.config)
            with collected(is_strict=served.config.strict_requests) as ignored:
                request.state.entry.ignored = ignored
                request.checked = body.model_validate(request.document)
                return await handle(request)

        return read


class BodyQueue:
    """Runs what reads requests in other threads: what is large one after the other."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(1)
        self._num_large = 0
        self._received = asyncio.Semaphore(READ_AT_ONCE)

    async def receive(self, read: Callable[[], Awaitable[T]], nbytes: int) -> T:
        """Receive a body of so many bytes: each part of each of many large ones costs the event loop a turn."""
        if nbytes < LARGE:
            return await read()
        has_turn = False
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                has_turn = await self._received.acquire()
        try:
            return await read()
        finally:
            if has_turn:
                self._received.release()

    async def run(self, work: Callable[[], T], nbytes: int) -> T:
        """Return the result of work on so many bytes."""
        if nbytes < LARGE:
            return await asyncio.to_thread(work)
        self._num_large += 1
        try:
            async with self._large:
                return await asyncio.to_thread(work)
        finally:
            self._num_large -= 1
            if not self._num_large:  # what the last one leaves; it takes its time
                await asyncio.to_thread(trim_heap)


async def received(request: Request, config: ServerConfig) -> bytes:
    """Receive a body. Raises ApiError for one of a page that is not called JSON, one too large or too slow."""
    kind = request.headers.get("content-type", "")
    is_unasked = kind.partition(";")[0].strip().lower() in _UNASKED
    if is_unasked and any(name in request.headers for name in _OF_BROWSERS):
        raise ApiError(
            415,
            f"content-type must be application/json, got {short_repr(kind) if kind else 'none'}: add the header "
            "(curl: -H 'content-type: application/json')",
        )
    try:
        async with asyncio.timeout(config.body_timeout):
            return await _received(request, config.max_body_nbytes)
    except TimeoutError:
        message = f"the body did not arrive within {config.body_timeout:g} s"
        raise ApiError(408, message, headers={"connection": "close"}) from None


async def _received(request: Request, limit: int) -> bytes:
    too_large = ApiError(
        413, f"the body exceeds the limit of {limit / 1e6:g} MB (--max-body-mb): send less"
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


def stated_nbytes(request: Request) -> int:
    """Return the size of the body that comes, as far as it is stated."""
    stated = request.headers.get("content-length", "0")
    return int(stated) if stated.isdecimal() else 0


def to_object(body: bytes, config: ServerConfig) -> dict[str, Any]:
    """Parse the JSON object in a body. Raises ApiError if it is none."""
    _check_values(body, max(MIN_VALUES, config.max_body_nbytes // VALUE_NBYTES))
    try:
        text = body.decode(json.detect_encoding(body))
        document = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise invalid("the body must be a JSON object")
    if _SUSPECT.search(text):
        _check_plain(document)
    return document


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _check_plain(document: dict[str, Any]) -> None:
    """Raise ApiError that names the first field with a text that is not Unicode, or a number beyond all floats."""
    level: list[tuple[str, object]] = [("", document)]
    while level:
        inner: list[tuple[str, object]] = []
        for path, value in level:
            if isinstance(value, dict):
                for key, one in value.items():
                    if _is_odd(key):
                        raise _odd(path, key)
                    inner.append((f"{path}.{key}"[:_SHOWN], one))
            elif isinstance(value, list):
                inner += [(f"{path}.{i}", one) for i, one in enumerate(value)]
            elif _is_odd(value):
                raise _odd(path, value)
        level = inner


def _is_odd(value: object) -> bool:
    if not isinstance(value, str):
        return isinstance(value, int | float) and not -_MOST <= value <= _MOST
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def _odd(path: str, value: object) -> ApiError:
    param = path.removeprefix(".") or None
    name = param or "the body"
    if isinstance(value, str):
        what = f"must be Unicode, got {short_repr(value)} with a lone surrogate"
    else:
        what = f"must be {allowed(name) or f'a number from -{_MOST:.4g} to {_MOST:.4g}'}"
    return invalid(f"{name} {what}", param)


def _check_values(body: bytes, most: int) -> None:
    """Raise ApiError for JSON of more values than a request can need: to read and check them would stop all others.

    Values are parted by commas; those in texts are not counted. numpy lets other threads run meanwhile.
    """
    if body.count(b",") <= most:
        return
    bare = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_text = np.bitwise_xor.accumulate((bare == ord('"')).view(np.uint8)).view(np.bool_)
    if np.count_nonzero((bare == ord(",")) & ~is_text) > most:
        raise invalid(f"the body exceeds the limit of {most} values: send less")
