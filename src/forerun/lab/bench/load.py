"""A load for a server: requests that arrive at random, so many at once at most, and the times of each answer.

Times are taken as in vLLM's serving benchmark: from the moment a request is sent, not from its arrival, if it had
to wait for a place among the requests that may run at once.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from forerun.core.errors import ConfigError, check_least
from forerun.core.types import TaskPrompt
from forerun.server.client import Chunk, ChunkStream, Remote, RemoteError

ROUTE = "/chat/completions"


@dataclass(frozen=True, slots=True)
class Served:
    """One answer: seconds since the load began and since it was sent, tokens, or why there is none.

    `itl_s` are the gaps between chunks that bring text. `drafted`, `accepted` and `passes` are of servers that say so.
    """

    prompt: str
    start_s: float
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    itl_s: Sequence[float] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    passes: int = 0
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first one; None if there is one only."""
        more = self.output_tokens - 1
        return (self.e2e_s - self.ttft_s) / more if more > 0 else None


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, and when: `request_rate` a second on average (inf: all at once), `concurrency` at once at most.

    Without a rate, the first requests, as many as may run at once, begin spread over `ramp_up_s` seconds.
    """

    prompts: Sequence[TaskPrompt]
    body: Mapping[str, object]
    concurrency: int | None = None
    request_rate: float = math.inf
    seed: int = 0
    ramp_up_s: float = 0.0

    def __post_init__(self) -> None:
        check_least("concurrency", self.concurrency, 1)
        check_least("ramp_up", self.ramp_up_s, 0)
        if self.ramp_up_s and not math.isinf(self.request_rate):
            raise ConfigError(
                "ramp_up is for requests without a request_rate: leave out one of them"
            )
        if not self.request_rate > 0:
            raise ConfigError(f"request_rate must be above 0, got {self.request_rate}")

    def arrivals_s(self) -> list[float]:
        """When the requests arrive, in seconds from the beginning: a Poisson process from the seed."""
        if math.isinf(self.request_rate):
            num_prompts = len(self.prompts)
            first = min(self.concurrency or num_prompts, num_prompts)
            ramp = [self.ramp_up_s * i / first for i in range(first)]
            return ramp + [0.0] * (num_prompts - first)
        rng = random.Random(self.seed)
        return [*accumulate(rng.expovariate(self.request_rate) for _ in self.prompts)]


def draw(prompts: Sequence[TaskPrompt], count: int | None, seed: int) -> list[TaskPrompt]:
    """`count` prompts in random order; none comes a second time before all have come."""
    check_least("num_prompts", count, 1)
    rng, drawn = random.Random(seed), list[TaskPrompt]()
    while len(drawn) < (wanted := len(prompts) if count is None else count):
        drawn += rng.sample(prompts, min(len(prompts), wanted - len(drawn)))
    return drawn


@dataclass(slots=True)
class Run:
    """A load under way. Iterating gives answers as they end; `stop` ends those that run."""

    load: Load
    remote: Remote
    seconds: float = 0.0
    """From the beginning to the last answer's end."""
    _streams: set[ChunkStream] = field(default_factory=set)
    _is_stopped: threading.Event = field(default_factory=threading.Event)
    _start_s: float = 0.0

    def __iter__(self) -> Iterator[Served]:
        load = self.load
        self._start_s = time.perf_counter()
        pool = ThreadPoolExecutor(min(load.concurrency or len(load.prompts), len(load.prompts)))
        try:
            jobs: list[Future[Served | None]] = [
                pool.submit(self._arrive, prompt, at)
                for prompt, at in zip(load.prompts, load.arrivals_s(), strict=True)
            ]
            for job in as_completed(jobs):
                if (served := job.result()) is not None:
                    self.seconds = max(self.seconds, served.start_s + served.e2e_s)
                    yield served
        finally:  # whoever stops iterating wants no more answers
            self._is_stopped.set()
            for stream in [*self._streams]:
                stream.close()
            pool.shutdown(cancel_futures=True)

    def _arrive(self, prompt: TaskPrompt, at: float) -> Served | None:
        """The answer to a prompt that arrives `at` seconds after the beginning; None if the load was stopped."""
        wait_s = at - (time.perf_counter() - self._start_s)
        if wait_s > 0:
            self._is_stopped.wait(wait_s)
        if self._is_stopped.is_set():
            return None
        start_s = time.perf_counter() - self._start_s
        try:
            return self._ask(prompt, start_s)
        except RemoteError as error:
            if self._is_stopped.is_set():
                return None
            lasted_s = time.perf_counter() - self._start_s - start_s
            return Served(prompt.id, start_s, e2e_s=lasted_s, error=str(error))

    def _ask(self, prompt: TaskPrompt, start_s: float) -> Served:
        body: dict[str, object] = {
            "messages": [{"role": "user", "content": prompt.turns[0]}],
            "stream_options": {"include_usage": True},
            **self.load.body,
        }
        if self.remote.name is not None:
            body["model"] = self.remote.name
        came: list[tuple[float, bytes]] = []
        sent_s = time.perf_counter()
        with self.remote.stream(ROUTE, body) as stream:
            self._streams.add(stream)
            try:
                if self._is_stopped.is_set():  # while the server let us wait
                    stream.close()
                for piece in stream.pieces():
                    came.append((time.perf_counter(), piece))
            finally:
                self._streams.discard(stream)
        end_s = time.perf_counter()
        times, last = list[float](), Chunk()
        for at_s, chunk in stream.read(came):  # after the answer: it takes the server's time
            times += [at_s] if chunk.text else []
            last = Chunk(usage=chunk.usage or last.usage, timings=chunk.timings or last.timings)
        usage, timings = last.usage, last.timings
        return Served(
            prompt.id,
            start_s,
            (times[0] if times else end_s) - sent_s,
            (times[-1] if times else end_s) - sent_s,
            [after - before for before, after in pairwise(times)],
            int(usage.get("prompt_tokens", 0)),
            int(usage.get("completion_tokens", len(times))),  # else one chunk is one token
            int(timings.get("draft_n", 0)),
            int(timings.get("draft_n_accepted", 0)),
            int(timings.get("passes", 0)),
        )
