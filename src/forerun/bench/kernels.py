"""What a pass costs: the price v(k) of k rows against one, and the step against reading the weights once.

A pass is the model's body and head over a chain of k rows above a filled cache, as in verifying. The widths take turns,
so that the machine's moods meet all alike; medians count. Bandwidth is that of a plain vectorised read of as many bytes
as the weights have, on the same threads, taking its turn with the passes: what this machine gives at this moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.nn.model import Model

WIDTHS = (1, 2, 4, 8, 16, 32)
READ = 0
"""The width under which reading the weights is timed."""


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Median seconds of a pass by its number of rows, and of one read of the weights' bytes."""

    weights_nbytes: int
    read_s: float
    pass_s: dict[int, float]

    def document(self) -> dict[str, object]:
        """The figures as JSON values."""
        one_s = self.pass_s[1]
        return {
            "bandwidth_gb_s": round(self.weights_nbytes / self.read_s / 1e9, 2),
            "weights_mb": round(self.weights_nbytes / 1e6, 2),
            "stream_ms": round(self.read_s * 1e3, 4),
            "step_over_stream": round(one_s / self.read_s, 4),
            "rows": [
                {
                    "k": k,
                    "ms": round(seconds * 1e3, 4),
                    "v": round(seconds / one_s, 4),
                    "gb_s": round(self.weights_nbytes / seconds / 1e9, 2),
                }
                for k, seconds in self.pass_s.items()
            ],
        }


def measure(
    model: Model, *, context: int = 128, repeats: int = 30, widths: Sequence[int] = WIDTHS
) -> Iterator[PassCosts]:
    """Yield the costs known so far after every repeat; the last one counts. Raises ConfigError."""
    longest = model.config.max_position
    if 1 not in widths or min(widths) < 1:
        raise ConfigError(f"widths must be at least 1, and 1 among them, got {[*widths]}")
    if not 1 <= context <= longest - max(widths):
        raise ConfigError(f"context must be from 1 to {longest - max(widths)}, got {context}")
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, got {repeats}")
    actions = {READ: _reader(model.nbytes()), **_passes(model, context, widths)}
    for action in actions.values():  # warm up
        action()
    seconds: dict[int, list[float]] = {width: [] for width in actions}
    for _ in range(repeats):
        for width, action in actions.items():
            start_s = time.perf_counter()
            action()
            seconds[width].append(time.perf_counter() - start_s)
        medians = {width: median(times) for width, times in seconds.items()}
        yield PassCosts(model.nbytes(), medians.pop(READ), medians)


def _passes(model: Model, context: int, widths: Sequence[int]) -> dict[int, Callable[[], None]]:
    cache = model.new_cache(1, context + max(widths))
    prompt = Segment(0, 0, tuple(i % model.config.vocab_size for i in range(context)))
    model.forward(Batch((prompt,)), cache)
    cache.keep(0, list(range(context)))

    def run(batch: Batch) -> None:
        model.head(model.forward(batch, cache).last)

    batches = {k: Batch((Segment(0, context, prompt.tokens[:1] * k),)) for k in widths}
    return {k: partial(run, batch) for k, batch in batches.items()}


def _reader(nbytes: int) -> Callable[[], None]:
    """Reads that many bytes on torch's number of threads, but not on torch's threads: those would spin on after it."""
    num_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(num_threads)
    parts = np.array_split(np.ones(nbytes, dtype=np.uint8), num_threads)

    def read() -> None:
        list(pool.map(np.max, parts))

    return read
