"""Measures what two processes are worth on a machine of two cores, without a server.

    python -m dev.machine

Each computes with one thread: products of matrices in its cache, reading memory, the engine. The last line on stdout is
one JSON document: two over one, median and range. `dev.replicas` says the same beside its servers.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable

import torch

from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.llm import LLM

ROUNDS, SECONDS, NUM_NEW = 5, 2.0, 64
WORDS = [
    "river",
    "stone",
    "cloud",
    "wind",
    "grain",
    "harbour",
    "lamp",
    "winter",
    "path",
    "copper",
    "field",
    "letter",
]


def said(rng: random.Random, num: int) -> str:
    """Say so many words at random."""
    return " ".join(rng.choice(WORDS) for _ in range(num))


def rate(what: str) -> float:
    """Work for some seconds in this process, with one thread: units a second."""
    step, done, start = BUSY[what](), 0.0, time.perf_counter()
    while time.perf_counter() < start + SECONDS:
        done += step()
    return done / (time.perf_counter() - start)


def _compute() -> Callable[[], float]:
    """Products of matrices that lie in the second-level cache."""
    torch.set_num_threads(1)
    a = torch.rand(160, 160)
    return lambda: float(bool((a @ a)[0, 0] > 0))


def _stream() -> Callable[[], float]:
    """Bytes of an array that no cache holds."""
    torch.set_num_threads(1)
    data = torch.ones(1 << 26)
    return lambda: float(data.sum() > 0) * data.nbytes


def _engine() -> Callable[[], float]:
    """Tokens of four requests at once, without a server."""
    llm, rng = LLM(EngineConfig(threads=1)), random.Random(0)
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    prompts = [f"Write a story about these words: {said(rng, 60)}" for _ in range(4)]
    return lambda: sum(len(o.outputs[0].token_ids) for o in llm.generate(prompts, params))


BUSY = {"compute": _compute, "stream": _stream, "engine": _engine}


def machine() -> dict[str, str]:
    """Two processes over one, in turn: what the two cores themselves are worth together."""
    found: dict[str, list[float]] = {}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for what in (*BUSY, *[*BUSY] * ROUNDS):  # the first time warms up
            one, both = (sum(pool.map(rate, [what] * num, 1)) for num in (1, 2))
            found.setdefault(what, []).append(both / one)
    return {what: spread(ratios[1:]) for what, ratios in found.items()}


def spread(found: list[float]) -> str:
    """Write the median, and the range."""
    return f"{statistics.median(found):.3f} [{min(found):.3f}..{max(found):.3f}]"


if __name__ == "__main__":
    print(json.dumps(machine()))
