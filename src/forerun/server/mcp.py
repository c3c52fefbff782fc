"""A client of MCP servers (Model Context Protocol) over streamable HTTP, on the standard library.

It asks the servers of `--mcp-server` alone: no request names an address, and no redirect is followed. It takes part in
revisions 2025-03-26 to 2025-11-25, lists tools and calls them, and offers servers nothing itself. What goes wrong is
an McpError of one line. Its methods block: the server runs them in threads of their own.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import forerun
from forerun.core.errors import ConfigError, ForerunError, one_line, reason, short_repr
from forerun.system.files import read_text

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Revisions that are understood, the one that is asked for first."""
TIMEOUT_S = 60.0
"""For a call, with all that the server sends meanwhile."""
MAX_NBYTES = 1 << 20
"""Of an answer; a model reads far less."""
MAX_TOOLS = 256
_NO_METHOD = {"code": -32601, "message": "this client answers nothing but ping"}
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"

Document = dict[str, Any]


class McpError(ForerunError):
    """A server cannot be reached, or does not answer as the protocol says."""


class _SessionEndedError(McpError):
    """The server has forgotten the session: another one may begin."""


@dataclass(frozen=True, slots=True)
class McpAddress:
    """A server that may be asked: its name here, and where it is."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def all(cls, given: Sequence[str]) -> list[McpAddress]:
        """Read `URL`, `NAME=URL`, and files in the form of other programs' mcp.json. Raises ConfigError."""
        found = [one for text in given for one in cls._of(text)]
        names = [one.name for one in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"two MCP servers are called {twice}: give --mcp-server NAME=URL")
        return found

    @classmethod
    def _of(cls, text: str) -> Iterator[McpAddress]:
        if text.endswith(".json") and "://" not in text:
            yield from cls._file(text)
            return
        name, equals, url = text.partition("=")
        if not equals or "/" in name:
            name, url = "", text
        yield cls._checked(name, url, {})

    @classmethod
    def _file(cls, path: str) -> Iterator[McpAddress]:
        try:
            servers = json.loads(read_text(Path(path)))["mcpServers"]
            entries = {str(name): dict(entry) for name, entry in servers.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            form = '{"mcpServers": {NAME: {"url": URL, "headers": {...}}}}'
            raise ConfigError(f"{path} must be {form}") from None
        for name, entry in entries.items():
            if "command" in entry:
                raise ConfigError(
                    f"{path}: {name} is a program to start; only servers with a url are asked"
                )
            headers = {
                str(key): str(value) for key, value in dict(entry.get("headers", {})).items()
            }
            yield cls._checked(name, str(entry.get("url")), headers)

    @classmethod
    def _checked(cls, name: str, url: str, headers: Mapping[str, str]) -> McpAddress:
        try:
            parts = urlsplit(url)
            is_fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_fine = False
        if not is_fine or not url.isprintable() or " " in url:
            raise ConfigError(
                f"--mcp-server must be [NAME=]URL, http or https, got {short_repr(url)}"
            )
        name = name or str(parts.hostname)
        if not re.fullmatch(r"[\w.-]{1,64}", name):
            raise ConfigError(
                f"an MCP server's name is letters, digits, . and -, got {short_repr(name)}"
            )
        if not all(text.isprintable() for pair in headers.items() for text in pair):
            raise ConfigError(f"the headers of the MCP server {name} must be printable")
        return cls(name, url, headers)


class McpServer:
    """One server, and the session with it, which begins with the first question."""

    def __init__(self, address: McpAddress) -> None:
        self.address = address
        self._ids = itertools.count(1)
        self._session: dict[str, str] | None = None
        """Headers of all messages after the first."""
        self._beginning = Lock()

    def tools(self) -> list[Document]:
        """List its tools: `name`, `description` and `inputSchema` of each. Raises McpError."""
        tools, cursor = list[Document](), None
        for _ in range(MAX_TOOLS):  # a page may be empty
            found = self._ask("tools/list", {} if cursor is None else {"cursor": cursor})
            tools += [one for one in found.get("tools") or () if _is_tool(one)]
            cursor = found.get("nextCursor")
            if len(tools) > MAX_TOOLS:
                break
            if cursor is None:
                return tools
        raise McpError(f"{self.address.name} has more than {MAX_TOOLS} tools")

    def call(self, name: str, arguments: Mapping[str, Any]) -> Document:
        """Call a tool; return its result: `content`, a list of parts, and `isError`. Raises McpError."""
        return self._ask("tools/call", {"name": name, "arguments": arguments})

    def _ask(self, method: str, params: Document) -> Document:
        try:
            return self._request(method, params, self._begun())[0]
        except _SessionEndedError:
            self._session = None
            return self._request(method, params, self._begun())[0]

    def _begun(self) -> dict[str, str]:
        """Return the session's headers, of a new one where there is none."""
        with self._beginning:
            if self._session is None:
                about = {"name": "forerun", "version": forerun.__version__}
                asked = {"protocolVersion": VERSIONS[0], "capabilities": {}, "clientInfo": about}
                found, headers = self._request("initialize", asked, {})
                version = found.get("protocolVersion")
                if version not in VERSIONS:
                    speaks = f"{self.address.name} speaks revision {short_repr(version)} of MCP"
                    raise McpError(f"{speaks}; it must be {' or '.join(VERSIONS)}")
                session = {_VERSION: version}
                if _SESSION in headers:
                    session[_SESSION] = headers[_SESSION]
                self._notify({"method": "notifications/initialized"}, session)
                self._session = session
            return self._session

    def _request(
        self, method: str, params: Document, headers: Mapping[str, str]
    ) -> tuple[Document, Mapping[str, str]]:
        """Return the result, and the headers that it came with."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        with _Exchange(self.address, message, headers) as exchange:
            for answer in exchange.messages():
                if "method" in answer and "id" in answer:
                    is_ping = answer["method"] == "ping"
                    said = {"result": {}} if is_ping else {"error": _NO_METHOD}
                    self._notify({"id": answer["id"], **said}, headers)
                elif answer.get("id") == number:
                    return _result(self.address.name, answer), exchange.headers
        raise McpError(f"{self.address.name} has not answered {method}")

    def _notify(self, message: Document, headers: Mapping[str, str]) -> None:
        with _Exchange(self.address, message, headers):
            pass


class _Exchange:
    """A message and what the server answers. Raises McpError."""

    def __init__(self, address: McpAddress, message: Document, headers: Mapping[str, str]) -> None:
        self._name, self._end_s = address.name, time.monotonic() + TIMEOUT_S
        parts = urlsplit(address.url)
        is_tls = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        accepted = {"accept": "application/json, text/event-stream"}
        all_headers = {"content-type": "application/json", **accepted, **address.headers, **headers}
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        try:
            self._connection.request("POST", path, body, all_headers)
            self._answer = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise McpError(f"{address.name} does not answer: {reason(error)}") from error
        self.headers = {name.lower(): value for name, value in self._answer.getheaders()}
        if not 200 <= self._answer.status < 300:
            status = self._answer.status
            self._connection.close()
            is_over = status == http.HTTPStatus.NOT_FOUND and _SESSION in headers
            raise (_SessionEndedError if is_over else McpError)(
                f"{address.name} answers {status} {http.client.responses.get(status, '')}".rstrip()
            )

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def messages(self) -> Iterator[Document]:
        """Yield the messages of an answer: one of JSON, or those of a stream of events."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_stream = kind == "text/event-stream"
        for text in self._events() if is_stream else [b"".join(self._pieces())]:
            try:
                message = json.loads(text)
            except ValueError:
                raise McpError(f"{self._name} answers what is not JSON") from None
            if isinstance(message, dict):
                yield message

    def _events(self) -> Iterator[bytes]:
        """Yield the data of each event."""
        data, rest = list[bytes](), b""
        for piece in self._pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in (line.rstrip(b"\r") for line in lines):
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" "))
                elif not line and data:
                    yield b"\n".join(data)
                    data.clear()

    def _pieces(self) -> Iterator[bytes]:
        """Yield bytes as they come, within the bounds of size and time."""
        left = MAX_NBYTES
        while True:
            try:
                piece = self._answer.read1(left + 1)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise McpError(f"{self._name} ended its answer early: {reason(error)}") from error
            left -= len(piece)
            if left < 0:
                raise McpError(f"{self._name} answers with more than {MAX_NBYTES >> 20} MiB")
            if time.monotonic() > self._end_s:
                raise McpError(f"{self._name} took more than {TIMEOUT_S:g} s")
            if not piece:
                return
            yield piece


def _is_tool(given: object) -> bool:
    return isinstance(given, dict) and isinstance(given.get("name"), str) and bool(given["name"])


def _result(name: str, answer: Document) -> Document:
    """Return an answer's result. Raises McpError for an error, with the server's words."""
    if isinstance(error := answer.get("error"), dict):
        raise McpError(f"{name}: {one_line(str(error.get('message') or 'an error'))[:500]}")
    result = answer.get("result")
    if not isinstance(result, dict):
        raise McpError(f"{name} has answered without a result")
    return result
