"""A replica: a process of Ray that holds the models and answers as the bare server does, by the same application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from forerun.core.config import EngineConfig
from forerun.core.device import share_heaps
from forerun.core.errors import LoadError
from forerun.llm import LLM, planner_of
from forerun.server.app import CLOSE_S, new_app
from forerun.server.config import ServerConfig
from forerun.server.fleet import Fleet, ModelSource
from forerun.server.ray.asgi import Part, Request, answer
from forerun.server.ray.prefix import Route

POLL_S = 0.05


@dataclass(frozen=True)
class ReplicaPlan:
    """What each replica serves: a configuration for each model, and what `Fleet` takes besides."""

    engines: tuple[EngineConfig, ...]
    server: ServerConfig = field(default_factory=ServerConfig)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    """A chat template in place of the models' own."""

    @property
    def threads(self) -> int:
        """CPU threads of a replica."""
        return self.engines[0].threads or 1

    def with_threads(self, threads: int) -> ReplicaPlan:
        """Give each replica so many threads."""
        return replace(self, engines=tuple(replace(one, threads=threads) for one in self.engines))

    def sources(self) -> list[ModelSource]:
        """Say how the models are loaded, in the replica's own process."""
        return [
            ModelSource(
                one.model, partial(_loaded, one, self.template), cache(partial(_total, one))
            )
            for one in self.engines
        ]


class Replica:
    """Answers requests that gateways hand on. Ray makes it, with `num_cpus` for its threads."""

    async def __init__(self, plan: ReplicaPlan) -> None:  # type: ignore[misc]  # Ray awaits it
        """Load the first model. Raises what loading raises."""
        share_heaps()
        if plan.server.log_requests:
            logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
            logging.getLogger("forerun.requests").setLevel(logging.INFO)
        self._fleet = Fleet(
            plan.sources(), plan.server, plan.sampling, plan.engines[0].budget_nbytes
        )
        self._app = new_app(self._fleet)
        self._fleet.start()
        while not self._fleet.is_ready:
            if (error := self._fleet.error) is not None:
                raise error
            await asyncio.sleep(POLL_S)

    async def answer(self, request: Request, body: bytes, route: Route) -> AsyncIterator[Part]:
        """Answer a request as it comes; `route` was for the router."""
        async for part in answer(self._app, request, body):
            yield part

    async def check_health(self) -> None:
        """Raise LoadError where the engine's thread has ended: Ray then replaces the replica."""
        if not self._fleet.services[0].worker.is_running and self._fleet.is_one:
            raise LoadError("the engine's thread has ended")

    async def __del__(self) -> None:
        """End the engine's thread."""
        if hasattr(self, "_fleet"):
            await asyncio.to_thread(self._fleet.close, CLOSE_S)


def _loaded(config: EngineConfig, template: str | None) -> LLM:
    llm = LLM(config)
    if template is not None:
        llm.tokenizer.use_chat_template(template)
    return llm


def _total(config: EngineConfig) -> int:
    """Plan what a model takes of the budget. Raises LoadError, CapacityError."""
    assert config.budget_nbytes is not None
    return planner_of(config).fit(config.budget_nbytes).total
