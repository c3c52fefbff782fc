"""One thread that owns a model: it loads it, steps its engine while there is work, and sleeps while there is none.

Others hand it jobs, which run between two steps: a new request, the end of one. What a step brought is handed to the
event loops of the requests, with one call a loop and step. So a request that is cancelled costs no further step.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from forerun.core.params import SamplingParams
from forerun.core.types import Event
from forerun.engine.engine import Engine
from forerun.llm import LLM
from forerun.server.async_request import AsyncRequest, Closed, PromptProgress, StreamEvent
from forerun.system import background
from forerun.text.prompt import Encoded

_log = logging.getLogger(__name__)


class _Job(NamedTuple):
    """A request to take up; without prompts, one to end."""

    request: AsyncRequest
    prompts: Sequence[Encoded] = ()
    params: SamplingParams | None = None


class _Delivery(NamedTuple):
    """What the engine thread has for a request."""

    request: AsyncRequest
    events: list[StreamEvent]
    is_over: bool
    error: BaseException | None = None
    progress: Sequence[PromptProgress] = ()


class Worker:
    """The engine thread. `llm` is there once the model is loaded, `error` if it cannot be or the thread has failed."""

    def __init__(
        self, load: Callable[[], LLM], on_loaded: Callable[[], object] = lambda: None
    ) -> None:
        """`on_loaded` is called by the thread when loading has ended, well or not."""
        self.llm: LLM | None = None
        self.error: BaseException | None = None
        self._load, self._on_loaded = load, on_loaded
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        """None only wakes the thread."""
        self._requests: dict[AsyncRequest, list[StreamEvent]] = {}
        """Those the engine runs, with what has not been sent to them; in the engine thread alone."""
        self._step_s = 0.0
        """When the last step began."""
        self._is_closing = self._is_over = False
        self._is_loaded = threading.Event()
        self._thread = background.owned("forerun-engine", self._run, lambda: self.close(0))

    @property
    def has_begun(self) -> bool:
        """True once it was started."""
        return self._thread.ident is not None

    @property
    def is_running(self) -> bool:
        """True from its start to its end."""
        return self._thread.is_alive() and not self._is_over

    @property
    def has_failed(self) -> bool:
        """True if an error has ended it while it served."""
        return self.llm is not None and self.error is not None

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def wait_until_loaded(self) -> LLM:
        """Wait for the model, and return it. Raises what loading raised."""
        self._is_loaded.wait()
        if self.llm is None:
            raise self.error or Closed("the engine is closed")
        return self.llm

    def submit(
        self,
        prompts: Sequence[Encoded],
        params: SamplingParams,
        on_over: Callable[[AsyncRequest], object] = lambda request: None,
        interval_s: float = 0.0,
        *,
        with_progress: bool = False,
    ) -> AsyncRequest:
        """Hand over a request of the running event loop; `accepted` tells what the engine says of it.

        `on_over` is called in that loop when the request has ended, however that came. Events are sent not more often
        than every `interval_s` (longer where many requests run), the first at once: to wake an event loop and to send
        takes as long as much of a small model's step. Requests of one interval are sent to together.
        `with_progress`: after each step it learns how far its prompts were read.
        """
        loop = asyncio.get_running_loop()
        request = AsyncRequest(self.drop, loop, on_over, interval_s, with_progress=with_progress)
        self._jobs.put(_Job(request, prompts, params))
        if not self.is_running:
            self._refuse_jobs()
        return request

    def drop(self, request: AsyncRequest) -> None:
        """End a request before the next step."""
        self._jobs.put(_Job(request))

    def close(self, timeout_s: float = 5.0) -> bool:
        """End all requests and the thread; False if it still runs after the time."""
        self._is_closing = True
        self._jobs.put(None)
        if self.has_begun:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.llm = self._load()
        except BaseException as error:
            self.error = error
        self._is_loaded.set()
        try:
            self._on_loaded()
            if self.llm is not None:
                self._serve(self.llm)
        except Exception as error:
            self.error = error
            _log.exception("the engine's thread failed: no more requests can be answered")
        finally:
            self._end_all()

    def _serve(self, llm: LLM) -> None:
        while not self._is_closing:
            for job in self._new_jobs(wait=not llm.loop.has_work):
                self._do(job, llm)
            if llm.loop.has_work and not self._is_closing:
                self._step(llm)
            self._send(self._deliveries(llm.loop.engine))

    def _new_jobs(self, *, wait: bool = False) -> Iterator[_Job]:
        try:
            while True:
                job = self._jobs.get(block=wait)
                wait = False
                if job is not None:
                    yield job
        except queue.Empty:
            return

    def _do(self, job: _Job, llm: LLM) -> None:
        request, events, index = job.request, list[StreamEvent](), dict[int, int]()
        if job.params is None:
            request.end()
            return

        def take(event: Event) -> None:
            events.append(StreamEvent(index[event.seq_id], event, time.perf_counter()))

        try:
            for prompt in job.prompts:
                handle = llm.loop.submit(
                    prompt.token_ids,
                    job.params,
                    take,
                    prompt=prompt.text,
                    num_instructions=prompt.num_instructions,
                )
                request.handles.append(handle)
                for run in handle.runs:
                    index[run.seq.id] = len(index)
        except Exception as error:
            request.end()
            self._send([_Delivery(request, [], True, error)])
            return
        self._requests[request] = events
        self._send([_Delivery(request, [], False)])

    def _step(self, llm: LLM) -> None:
        """Step once. An error in it has ended what ran; the next requests get another chance."""
        self._step_s = time.perf_counter()
        try:
            llm.loop.step()
        except Exception:
            _log.exception("an engine step failed: %d requests were ended", len(self._requests))

    def _deliveries(self, engine: Engine) -> list[_Delivery]:
        """Collect what there is to tell; who has ended is forgotten."""
        deliveries, now_s = [], time.perf_counter()
        for request, events in [*self._requests.items()]:
            is_over = all(each.is_finished for each in request.handles)
            progress: Sequence[PromptProgress] = ()
            if request.reader is not None:
                progress = request.reader.read(
                    request.handles, engine.num_read, self._step_s, now_s
                )
            if is_over or progress or (events and request.is_due(now_s, len(self._requests))):
                error = next((each.error for each in request.handles if each.error), None)
                deliveries.append(_Delivery(request, [*events], is_over, error, progress))
                events.clear()
            if is_over:
                del self._requests[request]
        return deliveries

    def _send(self, deliveries: list[_Delivery]) -> None:
        """Hand it out with one call a loop; requests of a loop that is closed end."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Delivery]] = {}
        for one in deliveries:
            by_loop.setdefault(one.request.loop, []).append(one)
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_hand_out, batch)
            except RuntimeError:
                for one in batch:
                    self.drop(one.request)

    def _end_all(self) -> None:
        """End what runs, and tell the waiting clients why, without the engine, which may be what has failed."""
        error, requests = self._why_closed(), self._requests
        self._requests, self._is_over = {}, True
        for request in requests:
            with suppress(Exception):
                request.end()
        self._send([_Delivery(one, events, True, error) for one, events in requests.items()])
        self._refuse_jobs()

    def _refuse_jobs(self) -> None:
        error = self._why_closed()
        jobs = [job for job in self._new_jobs() if job.params is not None]
        self._send([_Delivery(job.request, [], True, error) for job in jobs])

    def _why_closed(self) -> BaseException:
        return self.error or Closed("the engine is shutting down")


def _hand_out(deliveries: list[_Delivery]) -> None:
    for request, events, is_over, error, progress in deliveries:
        request.deliver(events, is_over, error, progress)
