"""The access log: one line for each request that has ended, however it did. Counts and times, no word of it."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.core.errors import short_repr
from forerun.server.answers import timings
from forerun.server.worker import AsyncRequest

_log = logging.getLogger("forerun.requests")


@dataclass(slots=True)
class LogEntry:
    """What is known of a request. `running` is what the engine answers, for those that come so far."""

    id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex[:16]}")
    start_s: float = field(default_factory=time.perf_counter)
    status: int | None = None
    running: AsyncRequest | None = None
    model: str | None = None
    """Of several, the one that was asked."""

    def line(self, method: str, path: str) -> str:
        """Write the line, at the end of the request."""
        end_s = time.perf_counter()
        parts = [f"{self.id} {method} {_plain(path)} {self.status or 'gone'}"]
        if self.model is not None:
            parts.append(f"model {self.model}")
        if (running := self.running) is not None and running.handles:
            found = timings(running, end_s, "")
            first_ms = found["prompt_ms"] + (running.start_s - self.start_s) * 1e3
            parts += [
                f"prompt {found['prompt_n']} tokens (+{found['cache_n']} cached)",
                f"answer {found['predicted_n']} tokens ({_reasons(running)})",
                f"first {first_ms:.0f} ms",
                f"accepted {found['draft_n_accepted']} of {found['draft_n']} drafted",
            ]
        return ", ".join([*parts, f"total {(end_s - self.start_s) * 1e3:.0f} ms"])


class AccessLog:
    """Logs every request, and gives it an id, which the answer's `x-request-id` tells."""

    def __init__(self, app: ASGIApp, is_on: bool) -> None:
        self.app, self._is_on = app, is_on

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
                MutableHeaders(scope=message)["x-request-id"] = entry.id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            entry.status = entry.status or 500  # it is answered outside of all middleware
            raise
        finally:
            if self._is_on:
                _log.info("%s", entry.line(scope["method"], scope["path"]))


def _plain(path: str) -> str:
    """Write a path so that it cannot break the line."""
    return path if path.isprintable() and " " not in path and len(path) < 60 else short_repr(path)


def _reasons(running: AsyncRequest) -> str:
    """List why its completions ended, each reason once."""
    found = [run.seq.finish_reason for run in running.runs]
    return "+".join(dict.fromkeys("abort" if one is None else one.value for one in found))
