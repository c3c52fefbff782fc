"""A replica: a process of Ray that holds the models and answers as the bare server does, by the same application.

Ray knows a request as a call of `lease`, which lasts as long as the request: so it counts for routing, scaling and
draining. The request itself comes over a connection to the replica's own server, as Ray's streams take a millisecond
for each part of an answer.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import ray
from ray import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.core.config import EngineConfig
from forerun.core.errors import LoadError
from forerun.llm import LLM, planner_of
from forerun.server import status
from forerun.server.app import new_app
from forerun.server.config import ServerConfig
from forerun.server.errors import of_status
from forerun.server.http import error_response
from forerun.server.models import ModelSource, ServedModels
from forerun.server.ray.exchange import TICKET, Lease
from forerun.server.ray.prefix import Route
from forerun.server.run import HttpServer, bind
from forerun.system.device import share_heaps

POLL_S = 0.02
UNUSED_S = 10.0
"""How long an unused ticket is valid."""


@dataclass(frozen=True)
class ReplicaPlan:
    """What each replica serves: a configuration for each model, and what `ServedModels` takes besides."""

    engines: tuple[EngineConfig, ...]
    server: ServerConfig = field(default_factory=ServerConfig)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    """A chat template in place of the models' own."""

    @property
    def threads(self) -> int:
        """CPU threads of a replica."""
        return self.engines[0].threads or 1

    def sources(self) -> list[ModelSource]:
        """Say how the models are loaded, in the replica's own process."""
        return [
            ModelSource(
                one.model, partial(_loaded, one, self.template), cache(partial(_total, one))
            )
            for one in self.engines
        ]


class Tickets:
    """Lets requests in that were announced, each once, and tells when they have ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._begun: dict[str, asyncio.Event] = {}
        self._ended: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request with a ticket on; refuse another."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        ticket = dict(scope["headers"]).get(TICKET, b"").decode("latin-1")
        begun = self._begun.pop(ticket, None)
        if begun is None:
            error = of_status(403, "this is a replica: send requests to the gateway")
            await error_response(error, scope["path"])(scope, receive, send)
            return
        begun.set()
        try:
            await self._app(scope, receive, send)
        finally:
            if (ended := self._ended.get(ticket)) is not None:
                ended.set()

    def new(self) -> str:
        """Announce a request."""
        ticket = secrets.token_hex(16)
        self._begun[ticket], self._ended[ticket] = asyncio.Event(), asyncio.Event()
        return ticket

    async def ended(self, ticket: str) -> None:
        """Wait until the request of a ticket has ended; for one that does not come not long."""
        try:
            if (begun := self._begun.get(ticket)) is not None:
                async with asyncio.timeout(UNUSED_S):
                    await begun.wait()
            await self._ended[ticket].wait()
        except TimeoutError:
            pass  # its gateway has gone
        finally:
            self._begun.pop(ticket, None)
            self._ended.pop(ticket, None)


class Replica:
    """Answers requests that gateways hand on. Ray makes it, with `num_cpus` for its threads."""

    async def __init__(self, plan: ReplicaPlan) -> None:  # type: ignore[misc]  # Ray awaits it
        """Load the first model. Raises what loading raises."""
        share_heaps()
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
        self._served = ServedModels(
            plan.sources(), plan.server, plan.sampling, plan.engines[0].budget_nbytes
        )
        self._tickets = Tickets(new_app(self._served))
        self._host = ray.util.get_node_ip_address()
        listener = bind(self._host, 0)
        self._port = listener.getsockname()[1]
        self._server = HttpServer(
            self._tickets,
            plan.server,
            lambda line: None,
            lambda: self._served.num_running,
            self._served.cancel_all,
        )
        self._serving = asyncio.create_task(self._server.serve([listener]))
        while not self._served.is_ready:
            if (error := self._served.error) is not None:
                raise error
            await asyncio.sleep(POLL_S)
        gc.collect()
        gc.freeze()  # as the bare server does

    async def lease(self, route: Route) -> AsyncIterator[Lease]:
        """Tell where a request may come, and end when it has; `route` was for the router."""
        ticket = self._tickets.new()
        yield Lease(self._host, self._port, ticket)
        await self._tickets.ended(ticket)

    async def metrics(self) -> tuple[str, str]:
        """Return this replica's name, and its page for Prometheus."""
        page = await status.metrics(self._served)
        return serve.get_replica_context().replica_id.unique_id, bytes(page.body).decode()

    async def check_health(self) -> None:
        """Raise LoadError where the engine's thread or the server has ended: Ray then replaces the replica."""
        if self._serving.done() or self._served.failed or self._served.error is not None:
            raise LoadError("the engine's thread or the server has ended")

    async def __del__(self) -> None:
        """End the server and the engine's thread, when the last request has ended."""
        if hasattr(self, "_serving"):
            self._server.should_exit = True
            await self._serving


def _loaded(config: EngineConfig, template: str | None) -> LLM:
    llm = LLM(config)
    if template is not None:
        llm.tokenizer.use_chat_template(template)
    return llm


def _total(config: EngineConfig) -> int:
    """Plan what a model takes of the budget. Raises LoadError, CapacityError."""
    assert config.budget_nbytes is not None
    return planner_of(config).fit(config.budget_nbytes).total
