"""Runs in a peer's environment: loads one adapter and answers requests, JSON lines on stdin and stdout.

Started as a script; it imports the standard library only. First line out: {"ready": true} or {"error": ...}. A
request is {"prompt": [ids], "num_tokens": n}, its answer {"token_ids", "ttft_s", "decode_s", "peak_rss_mb"} or
{"error": ...}. An adapter loaded in its way `passes` answers {"pass": [num_seqs, rows, context]} with {"seconds"}.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

Generate = Callable[[list[int]], Iterator[int]]


def measure(generate: Generate, prompt: list[int], num_tokens: int) -> dict[str, object]:
    """Generate that many tokens; the clock of decoding starts with the first one."""
    start_s = time.perf_counter()
    tokens = generate(prompt)
    token_ids = [next(tokens)]
    first_s = time.perf_counter()
    while len(token_ids) < num_tokens:
        token_ids.append(next(tokens))
    end_s = time.perf_counter()
    return {
        "token_ids": [int(token) for token in token_ids],
        "ttft_s": first_s - start_s,
        "decode_s": end_s - first_s,
        "peak_rss_mb": peak_rss_mb(),
    }


def burst(action: Callable[[], object], least_s: float = 0.05, least: int = 3) -> float:
    """Median seconds of an action repeated for that long, and at least so many times."""
    seconds: list[float] = []
    while sum(seconds) < least_s or len(seconds) < least:
        start_s = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def peak_rss_mb() -> float:
    """The most memory this process held; Linux's `ru_maxrss` would begin at what its parent held."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        peak_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak_kb / (1024 if sys.platform != "darwin" else 1024**2), 1)


def serve(adapter: str, model: str, way: str, num_threads: int, max_len: int, out: TextIO) -> None:
    """Answer requests until stdin ends."""

    def say(message: dict[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        spec = importlib.util.spec_from_file_location("adapter", adapter)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        generate = module.load(model, way, num_threads, max_len)
        say({"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            if "pass" in request:
                say({"seconds": burst(generate(*request["pass"]))})
                continue
            say(measure(generate, request["prompt"], request["num_tokens"]))
    except Exception as error:  # whatever a peer can raise belongs in the report
        say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    # A library that prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    adapter, model, way, num_threads, max_len = sys.argv[1:]
    serve(adapter, model, way, int(num_threads), int(max_len), answers)
