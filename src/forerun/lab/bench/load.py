"""A load: requests that arrive at random, so many at once at most, and the times of each answer.

Times are taken as in vLLM's serving benchmark: from the moment a request is sent, not from its arrival, if it had to
wait because as many requests as may were running.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from forerun.core.errors import ConfigError, ForerunError, check_least
from forerun.core.types import TaskPrompt
from forerun.server.client import Chunk, Remote

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
    """Requests that arrive `request_rate` a second on average (inf: all at once), at most `concurrency` at once.

    Without a rate, the first requests, as many as may run at once, begin spread over `ramp_up_s` seconds.
    """

    prompts: Sequence[TaskPrompt]
    body: Mapping[str, Any]
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
        """Draw when the requests arrive, in seconds from the beginning: a Poisson process from the seed."""
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
    """A load under way. Iterating gives answers as they end; whoever stops iterating ends those that run."""

    load: Load
    remote: Remote
    """A server of OpenAI's API."""
    seconds: float = 0.0
    """From the beginning to the last answer's end."""
    _enders: set[Callable[[], object]] = field(default_factory=set)
    _is_stopped: threading.Event = field(default_factory=threading.Event)
    _start_s: float = 0.0

    def __iter__(self) -> Iterator[Served]:
        load = self.load
        self._start_s = time.perf_counter()
        pool = ThreadPoolExecutor(min(load.concurrency or len(load.prompts), len(load.prompts)))
        try:
            pairs = zip(load.prompts, load.arrivals_s(), strict=True)
            jobs = [pool.submit(self._arrive, prompt, at) for prompt, at in pairs]
            for job in as_completed(jobs):
                if (served := job.result()) is not None:
                    self.seconds = max(self.seconds, served.start_s + served.e2e_s)
                    yield served
        finally:
            self._is_stopped.set()
            for end in [*self._enders]:
                end()
            pool.shutdown(cancel_futures=True)

    def _arrive(self, prompt: TaskPrompt, at: float) -> Served | None:
        """The answer to a prompt that arrives `at` seconds after the beginning; None if the load was stopped."""
        self._is_stopped.wait(max(0.0, at - (time.perf_counter() - self._start_s)))
        if self._is_stopped.is_set():
            return None
        sent_s = time.perf_counter()
        try:
            served = self._ask(prompt)
        except ForerunError as error:
            if self._is_stopped.is_set():
                return None
            lasted_s = time.perf_counter() - sent_s
            served = Served(prompt.id, sent_s, e2e_s=lasted_s, error=str(error))
        return replace(served, start_s=served.start_s - self._start_s)

    def _ask(self, prompt: TaskPrompt) -> Served:
        """Stream an answer, whose start is on the clock's scale. Raises ForerunError."""
        body: dict[str, object] = {
            "messages": [{"role": "user", "content": prompt.turns[0]}],
            "stream_options": {"include_usage": True},
            **self.load.body,
        }
        if self.remote.name is not None:
            body["model"] = self.remote.name
        sent_s = time.perf_counter()
        with self.remote.stream(ROUTE, body) as stream, self._watch(stream.close):
            pieces = [(time.perf_counter(), piece) for piece in stream.pieces()]
        end_s = time.perf_counter()
        texts_s, last = list[float](), Chunk()
        for at_s, chunk in stream.read(pieces):  # after the answer: it takes the server's time
            texts_s += [at_s] if chunk.text else []
            last = Chunk(usage=chunk.usage or last.usage, timings=chunk.timings or last.timings)
        usage, timings = last.usage, last.timings
        first_s, last_s = (texts_s[0], texts_s[-1]) if texts_s else (end_s, end_s)
        return Served(
            prompt.id,
            start_s=sent_s,
            ttft_s=first_s - sent_s,
            e2e_s=last_s - sent_s,
            itl_s=[after - before for before, after in pairwise(texts_s)],
            input_tokens=int(usage.get("prompt_tokens", 0)),
            # Without a count one chunk is one token.
            output_tokens=int(usage.get("completion_tokens", len(texts_s))),
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            passes=int(timings.get("passes", 0)),
        )

    @contextmanager
    def _watch(self, end: Callable[[], object]) -> Iterator[None]:
        self._enders.add(end)
        try:
            if self._is_stopped.is_set():  # while the server let us wait
                end()
            yield
        finally:
            self._enders.discard(end)
