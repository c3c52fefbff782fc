"""What this machine can do at most: read memory, and multiply integers on registers. Passes are held against both."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from forerun.core import device
from forerun.model.kernels import native

PEAK_ROUNDS = 1_000_000
"""Of dot products in one call: some 10 ms."""
READ_NBYTES = 1 << 28
"""Read at once by `measure`: beyond every cache but the largest."""
TRIES = 7

Action = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes read from memory and int8 multiply-adds, a second, on all threads."""

    bytes_s: float
    multiply_adds_s: float


def measure(isa: str, num_threads: int) -> Limits:
    """Measure both in about a second, reads and dot products in turns. Needs the native kernels."""
    read = reader(READ_NBYTES, num_threads)
    multiply, count = multiplier(isa, num_threads)
    read()
    multiply()
    seconds = [(_seconds(read), _seconds(multiply)) for _ in range(TRIES)]
    read_s, multiply_s = (median(each) for each in zip(*seconds, strict=True))
    return Limits(READ_NBYTES / read_s, count / multiply_s)


def reader(nbytes: int, num_threads: int | None = None) -> Action:
    """Make what reads that many bytes, on threads of its own: those of passes would spin on after it."""
    num_threads = device.num_threads(num_threads)
    pool = ThreadPoolExecutor(num_threads)
    parts = np.array_split(np.ones(nbytes, dtype=np.uint8), num_threads)
    read_part: Callable[[NDArray[np.uint8]], object] = np.max
    if native.available():
        from forerun import _native

        read_part = _native.read_bytes
    return lambda: list(pool.map(read_part, parts))


def multiplier(isa: str, num_threads: int) -> tuple[Action, int]:
    """Make what multiplies int8 on all threads; returns it and how many multiply-adds that is."""
    from forerun import _native

    pool = ThreadPoolExecutor(num_threads)
    work = [PEAK_ROUNDS] * num_threads
    multiply = partial(_native.int8_peak, isa)
    return lambda: list(pool.map(multiply, work)), sum(map(multiply, work))


def _seconds(action: Action) -> float:
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s
