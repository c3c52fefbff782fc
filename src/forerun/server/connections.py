"""How many connections may be open, and how long without a request: file descriptors run out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.server.errors import ApiError
from forerun.server.http import to_json
from forerun.system.processes import allow_descriptors

MAX_CONNECTIONS = 4096
"""Connections where nothing else says how many."""
RESERVED = 256
"""Descriptors for all else, and for connections that are accepted before the oldest one is closed."""
STALLED_S = 60.0
"""A client that takes nothing for so long has gone."""
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
INTERIM_S = (0.1, 0.5, 2.0)
"""Seconds between interim answers to a client whose end is unknown; the last for all later ones."""
ACCEPTED = 64
"""Connections that are accepted at once."""
_log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """A client's connection. A new one that is too many closes the one that has been idle for the longest time."""

    def __init__(self, *given: Any, most: int, **others: Any) -> None:
        super().__init__(*given, **others)
        self._most = most
        self.idle_since = 0.0
        """When it was made, or its last answer was complete, in the loop's time."""
        self._stalled: asyncio.TimerHandle | None = None
        self._interim: asyncio.TimerHandle | None = None
        self.is_half_closed = False
        """Whether the client sends no more; it may have gone."""

    @property
    def is_idle(self) -> bool:
        """True while no request is being answered: part of a request's head is not one, nor is a cut answer."""
        return self.cycle is None or self.cycle.response_complete or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, if there is a place or can be made one."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        if len(self.connections) > self._most and not close_oldest(self.connections - {self}):
            self._turn_away()

    def on_response_complete(self) -> None:
        """Be idle from now on."""
        self.idle_since = self.loop.time()
        super().on_response_complete()
        if self.is_half_closed:
            self.transport.close()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Go on with the answer: the client may have closed its writing side alone (`nc -N`).

        One that has gone resets the connection at what it is sent, so it is sent interim answers (RFC 9110, 15.2).
        """
        is_whole = self.conn.their_state is not h11.SEND_BODY
        if self.is_idle or not is_whole or self.conn.their_http_version != b"1.1":
            return None
        self.is_half_closed = True
        self._send_interim(0)
        return True

    def _send_interim(self, number: int) -> None:
        if self.cycle is None or self.cycle.response_started or self.transport.is_closing():
            return
        self.transport.write(INTERIM)
        wait_s = INTERIM_S[min(number, len(INTERIM_S) - 1)]
        self._interim = self.loop.call_later(wait_s, self._send_interim, number + 1)

    def pause_writing(self) -> None:
        """Let answers wait until the client takes what is written, and end the connection if it does not."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_S, self.abort)

    def resume_writing(self) -> None:
        """Go on with the answer."""
        self._no_longer_stalled()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._no_longer_stalled()
        if self._interim is not None:
            self._interim.cancel()
        super().connection_lost(exc)

    def _no_longer_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()

    def _turn_away(self) -> None:
        error = ApiError(
            503,
            f"{self._most} connections are in use (--max-connections): try again later",
            type="unavailable_error",
        )
        body = to_json(error.document())
        head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
        head += f"retry-after: 1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.connections.discard(self)
        self.transport.close()

    def abort(self) -> None:
        """Close it at once, with what the client has not taken of an answer: it may never take it."""
        self.connections.discard(self)
        self.transport.abort()


def most_connections() -> int:
    """Return as many as the system lets this process have, of which it asks for all it may."""
    most = allow_descriptors(MAX_CONNECTIONS + RESERVED)
    if most is None:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(most - RESERVED, most // 2))


def close_oldest(connections: Iterable[Any], number: int = 1) -> int:
    """Close so many of those that have been idle, or half closed, for the longest time; how many there were."""
    ours = (one for one in connections if isinstance(one, Connection))
    idle = [one for one in ours if one.is_idle or one.is_half_closed]
    oldest = sorted(idle, key=lambda one: one.idle_since)[:number]
    for one in oldest:
        one.abort()
    return len(oldest)


def close_idle(connections: Iterable[Any], seconds: float) -> None:
    """Close those that have had no request for so long, also where part of one has come."""
    for one in [*connections]:
        if not (isinstance(one, Connection) and one.is_idle):
            continue
        if one.loop.time() - one.idle_since > seconds:
            one.abort()


class OutOfDescriptors:
    """An event loop's exception handler: makes room where there are no descriptors, and says so once."""

    def __init__(self, connections: set[Any]) -> None:
        self._connections, self._has_warned = connections, False

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Handle it; all else as the loop does by itself."""
        if not str(context.get("message")).startswith("socket.accept() out of system resource"):
            loop.default_exception_handler({**context})
            return
        close_oldest(self._connections, ACCEPTED)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("no file descriptors are left: idle connections are closed (ulimit -n)")
