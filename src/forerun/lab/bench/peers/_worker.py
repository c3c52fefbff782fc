"""Runs in a peer's environment: loads one adapter and answers requests, JSON lines on stdin and stdout.

Started as a script; it imports the standard library only. First line out: {"ready": true} or {"error": ...}. A
request is {"prompt": [ids], "num_tokens": n}, its answer {"token_ids", "ttft_s", "decode_s", "decode_tokens",
"peak_rss_mb"} or {"error": ...}. An adapter of passes answers {"pass": [num_seqs, rows, context]} with {"seconds"}, one
of logits {"logits": [ids], "file": path} with {"rows"}: the file then holds them, fp32, row by row.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

Emit = Callable[[list[int]], None]
Generate = Callable[[list[int], int, Emit], None]
"""Generates that many tokens, or a few more, and gives each group to `Emit` as soon as it is final."""

PR_SET_PDEATHSIG = 1
"""Linux: the signal to get when the parent ends."""


class Clock:
    """Notes when tokens came. Decoding starts with the first of them, or with the first group."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.token_ids: list[int] = []
        self.num_first = 0
        self.start_s = self.first_s = self.end_s = time.perf_counter()

    def emit(self, token_ids: list[int]) -> None:
        """Note final tokens; those beyond what was asked for do not count."""
        now_s = time.perf_counter()
        emitted = [int(token) for token in token_ids][: self.num_tokens - len(self.token_ids)]
        if not emitted:
            return
        if not self.token_ids:
            self.first_s, self.num_first = now_s, len(emitted)
        self.token_ids += emitted
        self.end_s = now_s


def measure(generate: Generate, prompt: list[int], num_tokens: int) -> dict[str, object]:
    """Generate, and return the times. Raises RuntimeError if there are fewer tokens than asked for."""
    clock = Clock(num_tokens)
    generate(prompt, num_tokens, clock.emit)
    if len(clock.token_ids) < num_tokens:
        raise RuntimeError(f"gave {len(clock.token_ids)} of {num_tokens} tokens")
    return {
        "token_ids": clock.token_ids,
        "ttft_s": clock.first_s - clock.start_s,
        "decode_s": clock.end_s - clock.first_s,
        "decode_tokens": num_tokens - clock.num_first,
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
    """Return the most memory this process had, in MB; Linux's `ru_maxrss` would begin at what its parent held."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        peak_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak_kb / (1024 if sys.platform != "darwin" else 1024**2), 1)


def serve(adapter: str, options: dict[str, object], out: TextIO) -> None:
    """Load with these options, then answer requests until stdin ends."""

    def say(message: dict[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        loaded = runpy.run_path(adapter)["load"](**options)
        say({"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            if "pass" in request:
                say({"seconds": burst(loaded(*request["pass"]))})
            elif "logits" in request:
                say({"rows": loaded(request["logits"], request["file"])})
            else:
                say(measure(loaded, request["prompt"], request["num_tokens"]))
    except Exception as error:  # whatever a peer can raise belongs in the report
        say({"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]})


if __name__ == "__main__":
    if sys.platform == "linux":  # a sleeping process must not outlive the one that would wake it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A library that prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.argv[1], json.loads(sys.argv[2]), answers)
