"""One request to a replica over a connection of its own, and its answer as it comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

import h11
from starlette.types import Scope

TICKET = b"x-forerun-ticket"
"""Header by which a replica knows a request that it was told of."""
CONNECT_S = 5.0
"""How long a replica may take to accept a connection."""
SILENT_S, PROBE_S, PROBES = 5, 2, 3
"""Of TCP's keep-alive: a machine that is gone is noticed after 11 s."""
PART_NBYTES = 1 << 18
"""Bytes of an answer that are read at once."""
_OF_CONNECTION = frozenset(
    {*(b"connection", b"keep-alive", b"transfer-encoding", b"content-length"), b"expect", TICKET}
)

Headers = tuple[tuple[bytes, bytes], ...]


class Lost(Exception):
    """The replica of a request is gone."""


class Lease(NamedTuple):
    """Where a replica waits for a request, and the ticket that lets it in, once."""

    host: str
    port: int
    ticket: str


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request with its body."""

    method: str
    target: bytes
    headers: Headers
    body: bytes

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> ForwardedRequest:
        """Make it of what an ASGI server hands over."""
        path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
        query = scope.get("query_string", b"")
        headers = ((bytes(name).lower(), bytes(value)) for name, value in scope["headers"])
        kept = tuple(one for one in headers if one[0] not in _OF_CONNECTION)
        return cls(scope["method"], path + (b"?" + query if query else b""), kept, body)

    def to_bytes(self, ticket: str) -> bytes:
        """Write it as HTTP."""
        own = (
            (b"content-length", b"%d" % len(self.body)),
            (b"connection", b"close"),
            (TICKET, ticket.encode()),
        )
        connection = h11.Connection(h11.CLIENT)
        head = h11.Request(method=self.method, target=self.target, headers=[*self.headers, *own])
        return b"".join(
            connection.send(event) or b""
            for event in (head, h11.Data(data=self.body), h11.EndOfMessage())
        )


async def exchange(request: ForwardedRequest, lease: Lease) -> AsyncGenerator[Head | bytes, None]:
    """Ask a replica; yield the head of its answer, then the body as it comes. Raises Lost.

    Leaving the loop closes the connection, which ends the request.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(lease.host, lease.port)
    except (OSError, TimeoutError) as error:
        raise Lost from error
    try:
        _probe(writer.get_extra_info("socket"))
        writer.write(request.to_bytes(lease.ticket))
        async for event in _events(reader, request.method):
            yield event
    except OSError as error:
        raise Lost from error
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader, method: str) -> AsyncGenerator[Head | bytes, None]:
    """Read an answer. Raises Lost for one that ends too soon."""
    connection = h11.Connection(h11.CLIENT)
    # what h11 reads depends on the method that it believes to have sent
    connection.send(h11.Request(method=method, target="/", headers=[("host", "replica")]))
    connection.send(h11.EndOfMessage())
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(PART_NBYTES))
            elif isinstance(event, h11.Response):
                headers = tuple((bytes(name), bytes(value)) for name, value in event.headers)
                yield Head(event.status_code, headers)
            elif isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return
    except h11.RemoteProtocolError as error:
        raise Lost from error


def _probe(connection: socket.socket) -> None:
    """Let the system notice that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", SILENT_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, option):  # they have other names elsewhere
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
