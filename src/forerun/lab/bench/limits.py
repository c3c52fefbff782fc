"""What this machine can do at most: read memory, and multiply on registers. Passes are compared with both."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forerun.model.kernels import native
from forerun.system import device

PEAK_ROUNDS = 1_000_000
"""Of dot products in one call: some 10 ms."""

Action = Callable[[], object]


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


def multiplier(isa: str, num_threads: int, is_float: bool = False) -> tuple[Action, int]:
    """Make what multiplies int8, or floats, on all threads; returns it and how many multiply-adds that is."""
    from forerun import _native

    pool = ThreadPoolExecutor(num_threads)
    work = [PEAK_ROUNDS] * num_threads
    multiply = partial(_native.peak, isa, is_float=is_float)
    return lambda: list(pool.map(multiply, work)), sum(map(multiply, work))
