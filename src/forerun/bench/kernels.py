"""What a pass costs: the price v(k) of k rows against one, and the step against reading the weights once.

A pass is the model's body and head over a chain of k rows above a filled cache, as in verifying. The widths take turns,
so that the machine's moods meet all alike; medians count. Bandwidth is that of a plain vectorised read of as many bytes
as the weights have, on the same threads, taking its turn with the passes: what this machine gives at this moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np
import torch

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.nn.model import Model

WIDTHS = (1, 2, 4, 8, 16, 32)
K = TypeVar("K")
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
    if 1 not in widths or min(widths) < 1:
        raise ConfigError(f"widths must be at least 1, and 1 among them, got {[*widths]}")
    actions = {READ: _reader(model.nbytes()), **passes(model, context, widths)}
    for medians in in_turns(actions, repeats):
        yield PassCosts(model.nbytes(), medians.pop(READ), medians)


def in_turns(actions: Mapping[K, Callable[[], None]], repeats: int) -> Iterator[dict[K, float]]:
    """Time actions one after the other, again and again; the median seconds known so far, after every repeat."""
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, got {repeats}")
    for action in actions.values():  # warm up
        action()
    seconds: dict[K, list[float]] = {key: [] for key in actions}
    for _ in range(repeats):
        for key, action in actions.items():
            start_s = time.perf_counter()
            action()
            seconds[key].append(time.perf_counter() - start_s)
        yield {key: median(times) for key, times in seconds.items()}


def passes(
    model: Model, context: int, widths: Sequence[int], num_seqs: int = 1
) -> dict[int, Callable[[], None]]:
    """Passes by their rows, which `num_seqs` sequences of that context share evenly, a chain each."""
    longest = model.config.max_position
    if not 1 <= context <= longest - max(widths):
        raise ConfigError(f"context must be from 1 to {longest - max(widths)}, got {context}")
    cache = model.new_cache(num_seqs, context + max(widths) // num_seqs)
    prompt = Segment(0, 0, tuple(i % model.config.vocab_size for i in range(context)))
    model.forward(Batch((prompt,)), cache)
    cache.keep(0, list(range(context)))
    for slot in range(1, num_seqs):
        cache.copy(0, slot, context)

    def run(batch: Batch) -> None:
        model.head(model.forward(batch, cache).last)

    def rows(k: int) -> Batch:
        chain = prompt.tokens[:1] * (k // num_seqs)
        return Batch(tuple(Segment(slot, context, chain) for slot in range(num_seqs)))

    return {k: partial(run, rows(k)) for k in widths}


def _reader(nbytes: int) -> Callable[[], None]:
    """Reads that many bytes on torch's number of threads, but not on torch's threads: those would spin on after it."""
    num_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(num_threads)
    parts = np.array_split(np.ones(nbytes, dtype=np.uint8), num_threads)

    def read() -> None:
        list(pool.map(np.max, parts))

    return read
