"""Several models behind one address: a request names one, which is loaded when it is first asked for.

A memory budget is for all of them together. Each is loaded as it would be alone within that budget; where the loaded
ones leave too little, or would be more than `--models-max`, those that were not used for longest go, never one that
works on a request.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from forerun.core.errors import ConfigError, ForerunError
from forerun.core.paths import expanded
from forerun.engine.memory import together
from forerun.llm import LLM
from forerun.server.async_request import Closed
from forerun.server.bodies import BodyQueue, JsonRequest
from forerun.server.config import ServerConfig
from forerun.server.errors import is_called, loading, not_served, of_status
from forerun.server.metrics import ServerMetrics
from forerun.server.service import Service
from forerun.server.sleep import IdleClock
from forerun.system.device import process_nbytes, return_freed

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A model to serve."""

    model: str
    load: Callable[[], LLM]
    nbytes: Callable[[], int] = lambda: 0
    """What it takes of a budget for all."""
    max_len: Callable[[], int | None] = lambda: None
    """Tokens of a sequence, at most; asked while the model is not loaded."""


class ServedModels:
    """The models that are served. The first is loaded at the start, the others at their first use."""

    def __init__(
        self,
        sources: Sequence[ModelSource],
        config: ServerConfig,
        sampling: Mapping[str, Any] | None = None,
        budget: int | None = None,
    ) -> None:
        """`sampling` is that of `Service`, `budget` bytes of all models that are loaded. Raises ConfigError."""
        self.config, self.budget = config, budget
        self.metrics, self.bodies = ServerMetrics(), BodyQueue()
        self.services = tuple(
            Service(
                source.load, each, sampling, self.metrics.of(each.served_model_name[0]), self.bodies
            )
            for source, each in zip(sources, _configs(sources, config), strict=True)
        )
        self.on_loaded: Callable[[Service], object] = lambda service: None
        """Called by an engine thread when loading has ended, well or not."""
        self.on_dropped: Callable[[Service], object] = lambda service: None
        self._sources = dict(zip(self.services, sources, strict=True))
        self._was_ready = False
        self._loads: dict[Service, asyncio.Task[None]] = {}
        self._leases: Counter[Service] = Counter()
        self.clock = IdleClock(config.sleep_idle_seconds)
        self._loading = asyncio.Lock()
        """One model is loaded at a time, in the order they were asked for."""
        self._released = asyncio.Event()
        self.pulls = asyncio.Lock()
        """One model comes to this disk at a time."""

    @property
    def is_one(self) -> bool:
        """True for one model, which is there all the time."""
        return len(self.services) == 1

    @property
    def is_ready(self) -> bool:
        """True once the first model was loaded."""
        return self._was_ready or self.services[0].is_loaded

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return sum(service.num_running for service in self.services)

    @property
    def error(self) -> BaseException | None:
        """Why the first model could not be loaded, which ends the server."""
        return None if self.is_ready else self.services[0].worker.error

    @property
    def failed(self) -> list[str]:
        """The models whose engine thread an error has ended: only a new process answers for them."""
        return [one.names[0] for one in self.services if one.worker.has_failed]

    def max_len(self, service: Service) -> int | None:
        """Return the tokens of a sequence of a model, at most, loaded or not; None if it is not known."""
        return service.max_len or self._sources[service].max_len()

    def start(self) -> None:
        """Load the first model."""
        first = self.services[0]
        if self.is_one:
            first.on_loaded = lambda: self._first_loaded(first)
            first.start()
        else:
            self._load(first)

    def _first_loaded(self, service: Service) -> None:
        self.clock.touch(service)
        self._was_ready |= service.is_loaded
        self.on_loaded(service)

    async def sleep_idle(self) -> None:
        """Unload models without requests, until it is cancelled."""
        await self.clock.run(
            lambda: [one for one in self.services if one.is_loaded and not self._leases[one]],
            self.unload,
        )

    def close(self, timeout_s: float) -> bool:
        """End all; False if something still runs after the time."""
        return all([service.close(timeout_s) for service in self.services])  # noqa: C419  # all

    def cancel_all(self) -> None:
        """End what runs and what waits: the time for draining is over."""
        for task in self._loads.values():
            task.cancel()
        for service in self.services:
            service.cancel_all()

    def named(self, asked: str | None) -> Service:
        """Find the model of a name; the first for none, and the only one for any. Raises ApiError."""
        for service in self.services:
            if asked is None or is_called(asked, service.names) or self.is_one:
                return service
        raise not_served(asked, [service.names[0] for service in self.services])

    @asynccontextmanager
    async def leased(self, request: Request, asked: str | None) -> AsyncIterator[Service]:
        """Give the model of that name once it is loaded; it is not dropped meanwhile. Raises ApiError."""
        if self.is_one and not self.is_ready:  # the client gets that error
            yield self.services[0]
            return
        service = self.named(asked)
        if not self.is_one:
            request.state.entry.model = service.names[0]
        self._leases[service] += 1
        self.clock.keep(service, None)
        try:
            await self._ready(service)
            yield service
        finally:
            self._release(service)

    async def unload(self, service: Service) -> bool:
        """Release a model that is not in use; False if it stays."""
        async with self._loading:
            if self._leases[service] or not service.is_loaded:
                return not service.is_loaded
            await self._drop(service)
        return True

    async def _drop(self, service: Service) -> None:
        await service.drop()
        await asyncio.to_thread(_give_back)
        self.on_dropped(service)

    def _release(self, service: Service) -> None:
        self._leases[service] -= 1
        self.clock.touch(service)
        self._released.set()

    async def _ready(self, service: Service) -> None:
        """Wait until a model is loaded. Raises ApiError where that takes too long or cannot be."""
        if service.is_loaded:
            return
        task = self._loads.get(service) or self._load(service)
        ended, _ = await asyncio.wait([task], timeout=self.config.load_timeout)
        if not ended:
            raise loading(
                f"the model {service.names[0]} was not loaded within {self.config.load_timeout:g} s (--load-timeout): "
                "other models are loading or in use; try again later"
            )
        if task.cancelled():
            raise Closed("the server is shutting down")
        task.result()

    def _load(self, service: Service) -> asyncio.Task[None]:
        task = self._loads[service] = asyncio.create_task(self._bring(service))
        task.add_done_callback(lambda _: self._ended(service))
        return task

    def _ended(self, service: Service) -> None:
        task = self._loads.pop(service)
        if not task.cancelled():
            task.exception()  # so that asyncio does not report it where the caller has gone

    async def _bring(self, service: Service) -> None:
        """Load a model once there is room. Raises ApiError."""
        try:
            async with self._loading:
                await self._make_room(service)
                await self._loaded(service)
        except Exception as error:
            name, is_known = service.names[0], isinstance(error, ForerunError)
            if not is_known:
                _log.exception("the model %s cannot be loaded", name)
            traceback.clear_frames(error.__traceback__)  # they hold what was loaded of it
            why = str(error) if is_known else f"{type(error).__name__}; see the server's log"
            raise of_status(500, f"the model {name} cannot be loaded: {why}") from None

    async def _loaded(self, service: Service) -> None:
        """Load a model. Raises what loading raises."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def on_loaded() -> None:
            self._was_ready |= service.is_loaded
            self.on_loaded(service)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        service.on_loaded = on_loaded
        self.clock.touch(service)
        service.start()
        await ended.wait()
        if service.worker.error is not None:
            raise service.worker.error

    async def _make_room(self, service: Service) -> None:
        """Drop idle models until there is room for another, and wait for it where those that work have it."""
        while not self._has_room(service, ()):
            self._released.clear()
            idle = [one for one in self.services if one.is_loaded and not self._leases[one]]
            if not self._has_room(service, idle):
                await self._released.wait()
                continue
            oldest = min(idle, key=self.clock.used_s)
            await self._drop(oldest)

    def _has_room(self, service: Service, without: Collection[Service]) -> bool:
        """Tell whether a model fits beside those that are loaded, but these."""
        loaded = [one for one in self.services if one.is_loaded and one not in without]
        if self.config.models_max is not None and len(loaded) >= self.config.models_max:
            return False
        if self.budget is None or not loaded:
            return True
        totals = (self._sources[one].nbytes() for one in (*loaded, service))
        return together(totals, process_nbytes()) <= self.budget


def public_name(model: str) -> str:
    """Make a model's name for clients; of a file, not where it lies."""
    path = expanded(model)
    return path.name.removesuffix(".gguf") if path.exists() else model


def _configs(sources: Sequence[ModelSource], config: ServerConfig) -> list[ServerConfig]:
    """Make the configuration of each model: one has all names, several have one each. Raises ConfigError."""
    given = config.served_model_name
    if len(sources) == 1:
        return [replace(config, served_model_name=given or (public_name(sources[0].model),))]
    names = given or tuple(public_name(source.model) for source in sources)
    if len(names) != len(sources):
        raise ConfigError(
            f"served_model_name must be one name for each of {len(sources)} models, in their order, "
            f"got {len(names)}: {', '.join(names)}"
        )
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(
                f"{count} models are called {name}: give each its own name with --served-model-name"
            )
    return [replace(config, served_model_name=(name,)) for name in names]


def _give_back() -> None:
    """Give a dropped model's memory back, also what was frozen when it was loaded (`Server.loaded`)."""
    gc.unfreeze()
    return_freed()
    gc.freeze()


async def _all(request: Request) -> ServedModels:
    served: ServedModels = request.app.state.served
    return served


async def _of_body(request: JsonRequest) -> AsyncIterator[Service]:
    served = await _all(request)
    if request.checked.only_unloads:
        yield served.named(request.checked.model)
        return
    if not served.is_one:
        request.checked.check()
    async with served.leased(request, request.checked.model) as service:
        yield service


async def _of_query(request: Request, model: str | None = None) -> AsyncIterator[Service]:
    async with (await _all(request)).leased(request, model) as service:
        yield service


AllModels = Annotated[ServedModels, Depends(_all)]
FromBody = Annotated[Service, Depends(_of_body)]
"""For a route: the model that the body names; it stays until the answer is sent."""
FromQuery = Annotated[Service, Depends(_of_query)]
