"""What a pass costs: the price v(k) of k rows against one, and the step against reading the weights once.

A pass is the model's body and head over a chain of k rows above a filled cache, as in verifying. The widths take turns,
so that the machine's moods meet all alike; medians count. Two limits take their turns with them, on the same threads:
a prefetching read of as many bytes as the weights have, and integer dot products on registers, which the native kernels
could do at most. What this machine gives at this moment is compared with what they need at this moment.
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
from numpy.typing import NDArray

from forerun.cache.base import KVCache
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.kernels import native
from forerun.nn.backends.native import NativeDecoder
from forerun.nn.cost import flops_per_token
from forerun.nn.model import Model

WIDTHS = (1, 2, 4, 8, 16, 32)
K = TypeVar("K")
READ, PEAK = 0, -1
"""The widths under which reading the weights, and nothing but dot products, are timed."""
PEAK_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Median seconds of a pass by its number of rows, and of one read of the weights' bytes.

    `peak_ops_s`: operations a second of int8 dot products, two a multiply-add; 0 where torch computes.
    """

    weights_nbytes: int
    row_ops: int
    read_s: float
    pass_s: dict[int, float]
    peak_ops_s: float = 0.0

    def document(self) -> dict[str, object]:
        """The figures as JSON values."""
        one_s = self.pass_s[1]
        return {
            "bandwidth_gb_s": round(self.weights_nbytes / self.read_s / 1e9, 2),
            "peak_gop_s": round(self.peak_ops_s / 1e9, 1) or None,
            "weights_mb": round(self.weights_nbytes / 1e6, 2),
            "stream_ms": round(self.read_s * 1e3, 4),
            "step_over_stream": round(one_s / self.read_s, 4),
            "rows": [
                {
                    "k": k,
                    "ms": round(seconds * 1e3, 4),
                    "v": round(seconds / one_s, 4),
                    "gb_s": round(self.weights_nbytes / seconds / 1e9, 2),
                    "bandwidth_share": round(self.read_s / seconds, 4),
                    "peak_share": self._peak_share(k, seconds),
                }
                for k, seconds in self.pass_s.items()
            ],
        }

    def _peak_share(self, k: int, seconds: float) -> float | None:
        return round(k * self.row_ops / seconds / self.peak_ops_s, 4) if self.peak_ops_s else None


def measure(
    model: Model, *, context: int = 128, repeats: int = 30, widths: Sequence[int] = WIDTHS
) -> Iterator[PassCosts]:
    """Yield the costs known so far after every repeat; the last one counts. Raises ConfigError."""
    if 1 not in widths or min(widths) < 1:
        raise ConfigError(f"widths must be at least 1, and 1 among them, got {[*widths]}")
    actions = {READ: _reader(model.nbytes()), **passes(model, context, widths)}
    peak_ops = 0
    if isinstance(model, NativeDecoder):
        actions[PEAK], peak_ops = _multiplier(model)
    for medians in in_turns(actions, repeats):
        peak_s = medians.pop(PEAK, 1.0)
        row_ops = flops_per_token(model.config)
        yield PassCosts(model.nbytes(), row_ops, medians.pop(READ), medians, peak_ops / peak_s)


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
    for slot in range(num_seqs):
        fill(model, cache, slot, context)

    def run(batch: Batch) -> None:
        model.head(model.forward(batch, cache).last)

    def rows(k: int) -> Batch:
        chain = (0,) * (k // num_seqs)
        return Batch(tuple(Segment(slot, context, chain) for slot in range(num_seqs)))

    return {k: partial(run, rows(k)) for k in widths}


def fill(model: Model, cache: KVCache, slot: int, context: int) -> None:
    """Open the first free slot, `slot`, and commit `context` tokens: any will do, at least one."""
    tokens = tuple(i % model.config.vocab_size for i in range(context))
    opened = cache.open(tokens)
    assert opened is not None
    assert opened[0] == slot
    reused = opened[1]
    model.forward(Batch((Segment(slot, reused, tokens[reused:]),)), cache)
    cache.keep(slot, range(context - reused))


def _reader(nbytes: int) -> Callable[[], None]:
    """Reads that many bytes on torch's number of threads, but not on torch's threads: those would spin on after it."""
    num_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(num_threads)
    parts = np.array_split(np.ones(nbytes, dtype=np.uint8), num_threads)
    read_part: Callable[[NDArray[np.uint8]], object] = np.max
    if native.available():
        from forerun import _native

        read_part = _native.read_bytes

    def read() -> None:
        list(pool.map(read_part, parts))

    return read


def _multiplier(model: NativeDecoder) -> tuple[Callable[[], None], int]:
    """Multiplies on all of the model's threads, and how many operations that is."""
    from forerun import _native

    pool = ThreadPoolExecutor(model.num_threads)
    work = [PEAK_ROUNDS] * model.num_threads

    def multiply() -> None:
        list(pool.map(partial(_native.int8_peak, model.isa), work))

    return multiply, 2 * sum(_native.int8_peak(model.isa, rounds) for rounds in work)
