"""Middleware: the access log, and who may ask: those with the key, and which web pages.

A browser sends the requests of any page to any address. `Origin` shows whether a page is from elsewhere, or `Host`,
where a name was made to lead here (DNS rebinding). Bodies must be JSON by their content type
(`bodies.received`), which a page may not send elsewhere without a preflight request.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.compat.requests import IgnoredFields
from forerun.core.errors import short_repr
from forerun.server.async_request import AsyncRequest
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError
from forerun.server.http import error_response
from forerun.server.writer import timings

ANY = "*"
IGNORED = "x-forerun-ignored"
"""Names the fields of a request that were left out."""
OPEN_ROUTES = frozenset({"/health", "/v1/health"})
"""Routes that need no key."""
DESKTOP = r"(?:app|tauri|vscode-webview|vscode-file)://[\w.:-]*"
"""Origins of pages inside desktop programs: no web site can have these schemes."""
_PRIVATE = (".local", ".internal", ".home.arpa", ".lan")
"""Ends of names that no one outside of a network can own."""
_log = logging.getLogger("forerun.requests")


class RequestCheck(ABC):
    """Refuses some requests and passes the others on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    @abstractmethod
    def refused(self, path: str, headers: Mapping[bytes, bytes]) -> ApiError | None:
        """Say why a request is refused; None if it is not."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with the error."""
        error = None
        if scope["type"] == "http":
            error = self.refused(scope["path"], dict(scope["headers"]))
        app = self.app if error is None else error_response(error, scope["path"])
        await app(scope, receive, send)


class OriginCheck(RequestCheck):
    """Refuses requests of pages that are not this server's own, nor of the allowed origins."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        super().__init__(app)
        self._config = config
        self._names = {config.host.lower(), *(name.lower() for name in config.allowed_hosts)}
        if not config.is_local:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def refused(self, path: str, headers: Mapping[bytes, bytes]) -> ApiError | None:
        """Refuse by `Host` and `Origin`."""
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if host and self._config.api_key is None and not self._is_own(_name(host)):
            return ApiError(
                421,
                f"host not allowed: {short_repr(host)}: start the server with --allowed-hosts NAME for each name "
                "that clients use, or with an API key",
                code="host_not_allowed",
            )
        if origin and not self._is_let_in(origin, host):
            return ApiError(
                403,
                f"origin not allowed: {short_repr(origin)}: start the server with --allowed-origins ORIGIN for "
                "each allowed origin",
                code="origin_not_allowed",
                headers={"access-control-allow-origin": origin},  # the page may read why
            )
        return None

    def _is_own(self, name: str) -> bool:
        """Tell names that lead here, and that no outside owner of a name can point here."""
        if name in self._names or ANY in self._names or _is_address(name):
            return True
        if name == "localhost" or name.endswith(".localhost"):
            return True
        return not self._config.is_local and ("." not in name or name.endswith(_PRIVATE))

    def _is_let_in(self, origin: str, host: str) -> bool:
        allowed = self._config.allowed_origins
        try:
            is_own = bool(host) and urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:
            is_own = False
        is_desktop = re.fullmatch(DESKTOP, origin, re.ASCII) is not None
        return is_own or is_desktop or origin in allowed or ANY in allowed


def _name(host: str) -> str:
    """Find the name in a `Host`, without the port; empty for what is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Tell a number: a page that was loaded from it is this server's own."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class HeadAsGet:
    """Answers HEAD as GET, without the body: monitors and proxies ask so."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope.get("method") != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if "body" in message else message)

        await self.app({**scope, "method": "GET"}, receive, send_head)


class FramingCheck(RequestCheck):
    """Refuses a request whose end a proxy before the server may see elsewhere, and so take the rest for another one."""

    def refused(self, path: str, headers: Mapping[bytes, bytes]) -> ApiError | None:
        """Refuse two lengths, and close the connection."""
        if not headers.keys() >= {b"transfer-encoding", b"content-length"}:
            return None
        what = "the request has Transfer-Encoding and Content-Length: send one of them"
        return ApiError(400, what, headers={"connection": "close"})


class ApiKeyCheck(RequestCheck):
    """Lets only those in who send the key, `Authorization: Bearer KEY` or `X-Api-Key: KEY`."""

    def __init__(self, app: ASGIApp, api_key: str, opened: Collection[str] = OPEN_ROUTES) -> None:
        """`opened` are the paths that need no key."""
        super().__init__(app)
        self._api_key, self._opened = api_key.strip().encode(), opened

    def refused(self, path: str, headers: Mapping[bytes, bytes]) -> ApiError | None:
        """Refuse who does not send the key."""
        return None if path in self._opened or knows_key(headers, self._api_key) else wrong_key()


def knows_key(headers: Mapping[bytes, bytes], api_key: bytes) -> bool:
    """Tell whether a request of these headers sends the key."""
    word, _, key = headers.get(b"authorization", b"").partition(b" ")
    keys = [key.strip()] if word.lower() == b"bearer" else []
    keys.append(headers.get(b"x-api-key", b""))
    return any([hmac.compare_digest(key, api_key) for key in keys])  # noqa: C419  # all


def wrong_key() -> ApiError:
    """Say that the key is not the server's."""
    return ApiError(
        401,
        "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
        code="invalid_api_key",
        type="authentication_error",
        headers={"www-authenticate": "Bearer"},
    )


@dataclass(slots=True)
class LogEntry:
    """What is known of a request. `running` is what the engine answers, for those that come so far."""

    id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex[:16]}")
    start_s: float = field(default_factory=time.perf_counter)
    status: int | None = None
    running: AsyncRequest | None = None
    model: str | None = None
    """Of several, the one that was asked."""
    reason: str = ""
    """Why it was refused, without a word of it."""
    ignored: IgnoredFields | None = None
    """Its fields that were left out."""

    def line(self, method: str, path: str) -> str:
        """Write the line, at the end of the request."""
        end_s = time.perf_counter()
        parts = [f"{self.id} {method} {_plain(path)} {self.status or 'gone'}"]
        if self.reason:
            parts.append(self.reason)
        if self.model is not None:
            parts.append(f"model {self.model}")
        if (running := self.running) is not None and running.handles:
            figures = timings(running, end_s, "")
            first_ms = figures["prompt_ms"] + (running.start_s - self.start_s) * 1e3
            parts += [
                f"prompt {figures['prompt_n']} tokens (+{figures['cache_n']} cached{_parting(running)})",
                f"answer {figures['predicted_n']} tokens ({_reasons(running)})",
                f"first {first_ms:.0f} ms",
                f"accepted {figures['draft_n_accepted']} of {figures['draft_n']} drafted",
            ]
        return ", ".join([*parts, f"total {(end_s - self.start_s) * 1e3:.0f} ms"])


class AccessLog:
    """Counts and logs every request, and gives it an id, which the answer's `x-request-id` tells."""

    def __init__(self, app: ASGIApp, is_on: bool, count: Callable[[str, int | None], None]) -> None:
        """`count` is called with the method and status of each."""
        self.app, self._is_on, self._count = app, is_on, count
        if is_on:
            _log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log its end."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry = LogEntry()
        scope.setdefault("state", {})["entry"] = entry

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = entry.id
                if entry.ignored and entry.ignored.names:
                    headers[IGNORED] = entry.ignored.header()
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            entry.status = entry.status or 500  # it is answered outside of all middleware
            raise
        finally:
            self._count(scope["method"], entry.status)
            if self._is_on:
                _log.info("%s", entry.line(scope["method"], scope["path"]))


def _plain(path: str) -> str:
    """Write a path so that it cannot break the line."""
    return path if path.isprintable() and " " not in path and len(path) < 60 else short_repr(path)


def _parting(running: AsyncRequest) -> str:
    """Say at which token its prompt parts from an earlier one, if much was read for that."""
    at = running.runs[0].seq.parts_at
    return "" if at is None else f", parts from an earlier one at {at}"


def _reasons(running: AsyncRequest) -> str:
    """List why its completions ended, each reason once."""
    reasons = [run.seq.finish_reason for run in running.runs]
    return "+".join(dict.fromkeys("abort" if one is None else one.value for one in reasons))
