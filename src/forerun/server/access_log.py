"""The access log: a line for each request that has ended, and of one that takes longer how far its prompt was read."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.compat.ignored_fields import IgnoredFields
from forerun.core.errors import short_repr
from forerun.engine.loop import Request
from forerun.server.async_request import AsyncRequest
from forerun.server.http import in_background
from forerun.server.writer import timings

IGNORED = "x-forerun-ignored"
"""Names the fields of a request that were left out."""
FIRST_S, EACH_S = 0.5, 10.0
"""Seconds after which a request that has not ended gets a line, and between those on how far it is."""
_log = logging.getLogger("forerun.requests")


@dataclass(slots=True)
class LogEntry:
    """What is known of a request. `running` is what the engine answers, for those that come so far."""

    what: str = ""
    """Method and path."""
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
    _last: tuple[float, int] | None = None
    """When it was said how far its prompts were read, and the tokens."""

    def line(self) -> str:
        """Write the line of its end."""
        end_s = time.perf_counter()
        parts = [f"{self.id} {self.what} {self.status or 'gone'}"]
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

    def progress(self) -> str | None:
        """Write how far its prompts are, from the second time on with the time left; None if there is nothing new."""
        parts = [f"{self.id} {self.what}"]
        if self.running is None or not self.running.handles:
            return parts[0]
        handles, now_s = self.running.handles, time.perf_counter()
        firsts = [handle.runs[0] for handle in handles]
        if all(run.first_token_s is not None for run in firsts):
            return None
        num_prompt = sum(run.seq.num_prompt for run in firsts)
        begun = [run.seq.admitted_s for run in firsts if run.seq.admitted_s is not None]
        if not begun:
            return ", ".join([*parts, f"prompt {num_prompt} tokens, waiting for a place"])
        num_cached = sum(run.seq.num_reused for run in firsts)
        num_read = sum(map(_num_read, handles)) - num_cached
        before_s, num_before = self._last or (min(begun), -1)
        if num_read == num_before:
            return None
        self._last = now_s, num_read
        left = num_prompt - num_cached - num_read
        parts += [
            f"prompt {num_prompt - num_cached} tokens (+{num_cached} cached)",
            f"{num_read} read",
        ]
        if 0 <= num_before < num_read:  # fewer: of several texts the next ones
            left_s = left * (now_s - before_s) / (num_read - num_before)
            parts.append(f"{left_s:.0f} s left")
        return ", ".join(parts)


class AccessLog:
    """Counts and logs every request, and gives it an id, which the answer's `x-request-id` tells."""

    def __init__(self, app: ASGIApp, is_on: bool, count: Callable[[str, int | None], None]) -> None:
        """`count` is called with the method and status of each."""
        self.app, self._is_on, self._count = app, is_on, count
        if is_on:
            _log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log how far it is and its end."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry = LogEntry(f"{scope['method']} {_plain(scope['path'])}")
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
            async with in_background(_follow(entry)) if self._is_on else nullcontext():
                await self.app(scope, receive, send_with_id)
        except Exception:
            entry.status = entry.status or 500  # it is answered outside of all middleware
            raise
        finally:
            self._count(scope["method"], entry.status)
            if self._is_on:
                _log.info("%s", entry.line())


async def _follow(entry: LogEntry) -> None:
    """Log that a request came, unless it ends at once, and how far its prompts are, as long as they are read."""
    await asyncio.sleep(FIRST_S)
    told = None
    while True:
        line = entry.progress()
        if line is not None and line != told:
            _log.info("%s", line)
            told = line
        await asyncio.sleep(FIRST_S if entry.running is None else EACH_S)


def _num_read(handle: Request) -> int:
    """Count the tokens of a prompt whose rows are there, cached ones among them."""
    run = handle.runs[0]
    if run.has_begun or run.seq.finish_reason is not None:
        return run.seq.num_prompt
    return handle.loop.engine.num_read(run.seq) or 0


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
