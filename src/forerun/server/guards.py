"""Who may ask: those with the key, and which web pages, whose requests a browser sends to any address.

A page of elsewhere is told by `Origin`, or, where its name has been made to lead here (DNS rebinding), by `Host`.
Bodies must be JSON by name (`bodies.received`), which a page may not send elsewhere without asking first.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.core.errors import short_repr
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError
from forerun.server.http import error_response

ANY = "*"
OPEN_ROUTES = frozenset({"/health", "/v1/health"})
"""Routes that need no key."""
_PRIVATE = (".local", ".internal", ".home.arpa", ".lan")
"""Ends of names that no one outside of a network can own."""


class OriginCheck:
    """Refuses requests of pages that are not this server's own, nor of the allowed origins."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app, self._config = app, config
        self._names = {config.host.lower(), *(name.lower() for name in config.allowed_hosts)}
        if not config.is_local:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 421 or 403."""
        error = self.refused(dict(scope["headers"])) if scope["type"] == "http" else None
        if error is None:
            await self.app(scope, receive, send)
        else:
            await error_response(error, scope["path"])(scope, receive, send)

    def refused(self, headers: Mapping[bytes, bytes]) -> ApiError | None:
        """Say why a request of these headers is refused; None if it is not."""
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if host and self._config.api_key is None and not self._is_own(_name(host)):
            return ApiError(
                421,
                f"this server is not called {short_repr(host)}: start it with --allowed-hosts NAME for every "
                "name that it is reached by, or with a key",
                code="host_not_allowed",
            )
        if origin and not self._is_let_in(origin, host):
            return ApiError(
                403,
                f"pages of {short_repr(origin)} may not use this server: start it with --allowed-origins "
                "ORIGIN for every origin that may",
                code="origin_not_allowed",
            )
        return None

    def _is_own(self, name: str) -> bool:
        """Tell names that lead here, and cannot be made to by a stranger who owns them."""
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
        return is_own or origin in allowed or ANY in allowed


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


class FramingCheck:
    """Refuses a request whose end a proxy before the server may see elsewhere, and so take the rest for another one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400 and close the connection."""
        headers = {name for name, _ in scope.get("headers", ())}
        if not headers >= {b"transfer-encoding", b"content-length"}:
            await self.app(scope, receive, send)
            return
        error = ApiError(
            400,
            "the request has Transfer-Encoding and Content-Length: send one of them",
            headers={"connection": "close"},
        )
        await error_response(error, scope["path"])(scope, receive, send)


class ApiKeyCheck:
    """Lets only those in who send the key, `Authorization: Bearer KEY` or `X-Api-Key: KEY`."""

    def __init__(self, app: ASGIApp, api_key: str, opened: Collection[str] = OPEN_ROUTES) -> None:
        """`opened` are the paths that need no key."""
        self.app, self.api_key, self.opened = app, api_key.strip().encode(), opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if (
            scope["type"] != "http"
            or scope["path"] in self.opened
            or knows_key(dict(scope["headers"]), self.api_key)
        ):
            await self.app(scope, receive, send)
        else:
            await error_response(wrong_key(), scope["path"])(scope, receive, send)


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
