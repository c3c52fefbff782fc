"""The same load without a server: requests go straight to the engine, as many at once as clients would send."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from forerun.core.params import SamplingParams
from forerun.core.types import Event, TaskPrompt
from forerun.engine.loop import EngineLoop, RequestHandle
from forerun.lab.bench.load import Load, Served


@dataclass(slots=True)
class OfflineRun:
    """A load under way in this process, iterated as `Run` is. `encode` makes token ids of a conversation."""

    load: Load
    loop: EngineLoop
    encode: Callable[[Sequence[dict[str, str]]], list[int]]
    seconds: float = 0.0
    _running: list[_Answer] = field(default_factory=list)

    def __iter__(self) -> Iterator[Served]:
        load = self.load
        most = load.concurrency or len(load.prompts)
        waiting = deque(zip(load.prompts, load.arrivals_s(), strict=True))
        begin_s = time.perf_counter()
        try:
            while waiting or self._running:
                wait_s = waiting[0][1] - (time.perf_counter() - begin_s) if waiting else 0.0
                if waiting and wait_s <= 0 and len(self._running) < most:
                    self._send(waiting.popleft()[0], begin_s)
                elif self._running:
                    self.loop.step()
                    yield from self._ended()
                else:
                    time.sleep(wait_s)
        finally:
            for answer in self._running:
                answer.handle.cancel()

    def _send(self, prompt: TaskPrompt, begin_s: float) -> None:
        answer = _Answer(prompt.id, begin_s, time.perf_counter())
        params: dict[str, Any] = {**self.load.body}
        ids = self.encode([{"role": "user", "content": prompt.turns[0]}])
        answer.handle = self.loop.submit(ids, SamplingParams(**params), answer.take)
        self._running.append(answer)

    def _ended(self) -> Iterator[Served]:
        for answer in [one for one in self._running if one.handle.is_finished]:
            self._running.remove(answer)
            served = answer.served()
            self.seconds = max(self.seconds, served.start_s + served.e2e_s)
            yield served


@dataclass(slots=True)
class _Answer:
    """One request, and when its text came."""

    prompt: str
    begin_s: float
    sent_s: float
    handle: RequestHandle = field(init=False)
    times: list[float] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Note the time of an event with text."""
        if event.text:
            self.times.append(time.perf_counter())

    def served(self) -> Served:
        """Its figures, as those of an answer over HTTP."""
        run, end_s = self.handle.runs[0], time.perf_counter()
        return Served(
            self.prompt,
            self.sent_s - self.begin_s,
            (self.times[0] if self.times else end_s) - self.sent_s,
            (self.times[-1] if self.times else end_s) - self.sent_s,
            [after - before for before, after in pairwise(self.times)],
            run.seq.num_prompt,
            len(run.seq.tokens) - run.seq.num_prompt,
            run.stats.drafted,
            run.stats.accepted,
            run.stats.passes,
        )
