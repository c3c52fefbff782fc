"""Idle models: their memory is released after a time, and the next request loads them again.

The time is the server's (`--sleep-idle-seconds`), or what Ollama's `keep_alive` says, up to the model's next request.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta

from forerun.server.errors import must_be
from forerun.server.service import Service

MOST_S = 1.0
"""Seconds between two looks at the clock."""
FOREVER = "9999-12-31T23:59:59Z"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)"


def seconds_of(keep_alive: object) -> float | None:
    """Read Ollama's `keep_alive`: seconds, or a text such as 1h30m; below 0 is for ever. None: nothing is said.

    >>> seconds_of("1h30m"), seconds_of(0), seconds_of("-1"), seconds_of(None)
    (5400.0, 0.0, inf, None)

    Raises ApiError.
    """
    if keep_alive is None or keep_alive == "":
        return None
    text = str(keep_alive).strip()
    if isinstance(keep_alive, str | int | float) and not isinstance(keep_alive, bool):
        if re.fullmatch(r"-?\d+(\.\d+)?", text):
            return math.inf if float(text) < 0 else float(text)
        if re.fullmatch(rf"[-+]?(?:{_PART})+", text):
            total = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))
            return math.inf if text.startswith("-") else total
    raise must_be("keep_alive", "seconds, or a time such as 5m", keep_alive)


class IdleClock:
    """Knows how long each model may be idle, and then releases it."""

    def __init__(self, default_s: float | None) -> None:
        """Default seconds; None or below 0: for ever."""
        self._default_s = math.inf if default_s is None or default_s < 0 else default_s
        self._kept_s: dict[Service, float] = {}
        self._used_s: dict[Service, float] = {}

    def keep(self, service: Service, seconds: float | None) -> None:
        """Keep a model loaded so long without requests; None: the server's default. Each request sets it again."""
        if seconds is None:
            self._kept_s.pop(service, None)
        else:
            self._kept_s[service] = seconds

    def touch(self, service: Service) -> None:
        """Count the idle time from now on."""
        self._used_s[service] = time.monotonic()

    def used_s(self, service: Service) -> float:
        """Return when a model was last used, by `time.monotonic`."""
        return self._used_s.get(service, 0.0)

    def left_s(self, service: Service) -> float:
        """Return how long an idle model stays."""
        most_s = self._kept_s.get(service, self._default_s)
        return most_s - (time.monotonic() - self.used_s(service))

    def until(self, service: Service) -> str:
        """Write until when it stays, as Ollama does."""
        left_s = self.left_s(service)
        if not left_s < 1e9:
            return FOREVER
        end = datetime.now(UTC) + timedelta(seconds=max(left_s, 0))
        return end.isoformat().replace("+00:00", "Z")

    async def run(
        self, idle: Callable[[], Iterable[Service]], unload: Callable[[Service], Awaitable[bool]]
    ) -> None:
        """Unload, until it is cancelled, what was idle for too long."""
        while True:
            left_s = MOST_S
            for service in [*idle()]:
                left_s = min(left_s, service_left := self.left_s(service))
                if service_left <= 0:
                    await unload(service)
            await asyncio.sleep(max(left_s, 0.05))
