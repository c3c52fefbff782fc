"""Listening, and the way a server ends: SIGTERM and Ctrl-C let running requests finish, a second one does not wait."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from forerun.core.errors import ConfigError, reason
from forerun.model.cache.store import finish_writing
from forerun.server.app import new_app
from forerun.server.config import ServerConfig
from forerun.server.connections import (
    ACCEPTED,
    Connection,
    OutOfDescriptors,
    close_idle,
    most_connections,
)
from forerun.server.middleware import FramingCheck
from forerun.server.models import ModelSource, ServedModels
from forerun.server.service import Service
from forerun.system import background

BACKLOG = 1024
GRACE_S = 2
"""After the time for draining, for the last words to running requests."""

WRITE_S = 10.0
"""For prompts that are on their way to the disk."""

_log = logging.getLogger(__name__)


def serve(
    sources: Sequence[ModelSource],
    config: ServerConfig,
    say: Callable[[str], object] = lambda line: None,
    sampling: Mapping[str, Any] | None = None,
    budget: int | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Serve models until a signal comes; `say` is told where, and when it is ready; `sampling` is that of `Service`.

    `budget` is for all models that are loaded; `check` raises what is wrong with them at first sight, before anyone is
    told to come.

    Raises ConfigError if the address cannot be had, and what `load` raises.
    """
    served = ServedModels(sources, config, sampling, budget)
    listener = bind(config.host, config.port)
    try:
        check()
    except BaseException:
        listener.close()
        raise
    port = listener.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    say(f"listening on http://{host}:{port}")
    page = f"http://{host}:{port}" if config.open and config.page else None
    if config.api_key is None and not config.is_local:
        say(
            "no API key is set: anyone who can reach this address can use the server (--api-key-file)"
        )
    server = Server(served, say, page)
    server.run(sockets=[listener])
    if served.error is not None:
        raise served.error
    is_closed, is_written = served.close(0), finish_writing(WRITE_S)
    if not (
        is_closed and is_written
    ):  # it still loads, a step takes long, or the disk: do not wait
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def bind(host: str, port: int) -> socket.socket:
    """Open a socket that listens. Raises ConfigError for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off: parts of an answer would wait 40 ms for the client.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is in use: give another one with --port, or 0 for any"
            ) from error
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason(error)}") from error
    return listener


class HttpServer(uvicorn.Server):
    """uvicorn's server with our manners at the end."""

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        say: Callable[[str], object],
        num_running: Callable[[], int],
        cancel_all: Callable[[], object],
    ) -> None:
        """`num_running` counts requests that have not ended; `cancel_all` ends them."""
        most = config.max_connections or most_connections()
        super().__init__(
            uvicorn.Config(
                FramingCheck(app),
                access_log=False,
                log_config=None,
                log_level=logging.WARNING,
                lifespan="on",
                backlog=ACCEPTED,
                http=cast(Any, partial(Connection, most=most)),
                loop="asyncio",
                timeout_keep_alive=math.ceil(config.idle_timeout),
                timeout_graceful_shutdown=round(config.drain_timeout) + GRACE_S,
                server_header=False,
                ws="none",
            )
        )
        self._say, self._limits = say, config
        self._num_running, self._cancel_all = num_running, cancel_all

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        handler = OutOfDescriptors(self.server_state.connections)
        asyncio.get_running_loop().set_exception_handler(handler)
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)  # uvicorn's backlog is also how many are accepted at once

    async def on_tick(self, counter: int) -> bool:
        """Close, every second, what has been idle for too long."""
        if counter % 10 == 0:
            close_idle(self.server_state.connections, self._limits.idle_timeout)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End when the requests have ended, at a second signal at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        num_running = self._num_running()
        if num_running:
            limit = f"{self._limits.drain_timeout:g} s"
            word = signal.Signals(sig).name
            those = "1 request has" if num_running == 1 else f"{num_running} requests have"
            self._say(
                f"{word}: {those} {limit} to finish; a second {word} stops the server at once"
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end and clients take their answers for so long, then end them."""
        connections: Collection[Any] = self.server_state.connections

        def end() -> None:
            self._cancel_all()
            close_idle(connections, 0)

        timer = asyncio.get_running_loop().call_later(self._limits.drain_timeout, end)
        await super().shutdown(sockets)
        timer.cancel()
        for one in [*connections]:  # their requests did not end by themselves
            one.abort()
        gc.unfreeze()  # else what is left when Python ends is called leaked


class Server(HttpServer):
    """The server of the served models."""

    def __init__(
        self, served: ServedModels, say: Callable[[str], object], page: str | None = None
    ) -> None:
        """`page` is an address to open in the browser when the first model is ready."""
        super().__init__(
            new_app(served), served.config, say, lambda: served.num_running, served.cancel_all
        )
        self._served, self._page = served, page
        served.on_loaded, served.on_dropped = self.loaded, self.dropped

    def loaded(self, service: Service) -> None:
        """Take note that loading has ended, for an engine thread; without the first model there is no server."""
        llm = service.worker.llm
        if llm is None:
            self.should_exit |= not self._served.is_ready
            return
        if self.should_exit:
            return
        gc.collect()
        gc.freeze()  # all this stays: to look through it for garbage would stop every stream each time
        num_slots = service.num_slots
        others = [one.names[0] for one in self._served.services if not one.is_loaded]
        if (disk := llm.engine.cache.disk) is not None:
            self._say(disk.described())
        self._say(
            f"ready: {', '.join(service.names)}, drafter {llm.drafter_spec.text()}, "
            f"{num_slots} sequence{'s' * (num_slots > 1)} of {llm.max_len} tokens"
            + f"; at first use: {', '.join(others)}"
            * bool(others)
        )
        if (page := self._page) is not None:
            self._page = None
            background.watch("forerun-page", lambda: webbrowser.open(page))  # some wait for its end

    def dropped(self, service: Service) -> None:
        """Say that a model has made room for another."""
        self._say(f"unloaded: {service.names[0]}")
