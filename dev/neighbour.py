"""Decode beside a busy neighbour: `python -m dev.neighbour FILE.gguf [PYTHON_OF_LLAMA_CPP]` (Linux).

Passes of one row, two threads on two processors, alternately alone and with a process that spins on one of them. With
that one's half, 1.5 of 2 processors are left: the fair share is 1.33 times the time. Prints the median ms of a pass.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

PROMPT = list(range(100, 148))
ROUNDS, PASSES, MOST_S = 3, 48, 12.0
THREADS = 2


def spin(cpu: int) -> None:
    """Keep a processor busy for ever."""
    os.sched_setaffinity(0, {cpu})
    while True:
        pass


def ours(file: str) -> Callable[[int], None]:
    """Return what passes one token through our kernels."""
    from forerun.core.batch import Batch, Segment
    from forerun.model.loader import load_model
    from forerun.weights.checkpoint import open_checkpoint

    model = load_model(open_checkpoint(file), backend="native", num_threads=THREADS)
    cache = model.new_cache(1, 1024)
    length = 0

    def run(*tokens: int) -> None:
        nonlocal length
        model.head(model.forward(Batch((Segment(0, length, tokens),)), cache).last[-1:])
        cache.keep(0, range(len(tokens)))
        length += len(tokens)

    run(*PROMPT)
    return run


def llama_cpp(file: str) -> Callable[[int], None]:
    """Return what passes one token through llama.cpp."""
    from llama_cpp import Llama

    model = Llama(file, n_ctx=1024, n_threads=THREADS, n_threads_batch=THREADS, verbose=False)
    model.eval(PROMPT)
    return lambda token: model.eval([token])


def measure(name: str, file: str) -> dict[str, list[float]]:
    """Time passes of an engine in turns without and with the neighbour, in ms."""
    run = {"forerun": ours, "llama.cpp": llama_cpp}[name](file)
    times: dict[str, list[float]] = {"alone": [], "busy": []}
    for _ in range(ROUNDS):
        for state, found in times.items():
            neighbour = multiprocessing.get_context("spawn").Process(target=spin, args=(1,))
            if state == "busy":
                neighbour.start()
                time.sleep(0.5)
            begin = time.monotonic()
            for token in range(PASSES):
                start = time.perf_counter()
                run(100 + token)
                found.append(1000 * (time.perf_counter() - start))
                if time.monotonic() - begin > MOST_S:
                    break
            if state == "busy":
                neighbour.kill()
                neighbour.join()
    return times


def main() -> None:
    """Measure each engine in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m dev.neighbour")
    parser.add_argument("file")
    parser.add_argument("peer", nargs="?", help="a Python that has llama-cpp-python")
    parser.add_argument("--engine", help="measure this one here")
    given = parser.parse_args()
    if given.engine:
        print(json.dumps(measure(given.engine, given.file)))
        return
    for name, python in (("forerun", sys.executable), ("llama.cpp", given.peer)):
        if python is None:
            continue
        words = [python, "-m", "dev.neighbour", given.file, "--engine", name]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        times = json.loads(done.stdout.splitlines()[-1])
        alone, busy = (statistics.median(times[state]) for state in ("alone", "busy"))
        mean = statistics.mean(times["busy"]) / statistics.mean(times["alone"])
        print(
            f"{name}: {alone:.2f} ms alone, {busy:.2f} ms with the neighbour: {busy / alone:.2f}x, means {mean:.2f}x"
        )


if __name__ == "__main__":
    main()
