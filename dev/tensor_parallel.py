"""A pass of a model cut over processes against one process with as many threads, in turns, in one run.

    torchrun --nproc-per-node 2 -m dev.tensor_parallel MODEL [--rounds 15]

Rank 0 holds the whole model too; the others sleep while it computes that. Prints ms of passes of k rows, head included:
the median of all rounds and the median of the ratios of neighbouring ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from forerun.core.batch import Batch, Segment
from forerun.core.config import EngineConfig
from forerun.hub.names import resolve
from forerun.model.backends.native import NativeDecoder
from forerun.model.loader import load_model
from forerun.parallel import load as parallel
from forerun.parallel.place import Place
from forerun.weights.checkpoint import open_checkpoint

CONTEXT = 128
ROWS = (1, 2, 4, 8, 16)


def passes(model: NativeDecoder) -> Callable[[int], float]:
    """Return what times a pass of k rows behind a context, in ms."""
    cache = model.new_cache(1, CONTEXT + 64)
    tokens = tuple(range(100, 100 + CONTEXT))
    slot, _ = cache.open(tokens) or (0, 0)
    model.forward(Batch((Segment(slot, 0, tokens),)), cache)
    cache.keep(slot, range(CONTEXT))

    def timed(k: int) -> float:
        start_s = time.perf_counter()
        hidden = model.forward(Batch((Segment(slot, CONTEXT, tokens[:k]),)), cache)
        model.topk(hidden.last, 1)
        return 1e3 * (time.perf_counter() - start_s)

    return timed


def main() -> None:
    """Measure and print a line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    place = Place.of()
    config = EngineConfig(model=given.model, threads=1, tensor_parallel_size=place.size)
    if place.rank > 0:
        parallel.follow(config)
        return
    checkpoint = open_checkpoint(resolve(given.model))
    cut = passes(parallel.load(checkpoint, config))
    whole_model = load_model(checkpoint, weight_cache=True, num_threads=place.size)
    assert isinstance(whole_model, NativeDecoder)
    whole = passes(whole_model)
    os.write(
        1, f"{place.size} processes of 1 thread, 1 process of {place.size} threads, ms\n".encode()
    )
    for k in ROWS:
        pairs = [(again(cut, k), again(whole, k)) for _ in range(given.rounds)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        best = min(a for a, _ in pairs), min(b for _, b in pairs)
        line = (
            f"k={k}: {ours:.1f} {theirs:.1f}, speed {ratio:.2f}; best {best[0]:.1f} {best[1]:.1f}"
        )
        os.write(1, f"{line}\n".encode())


def again(run: Callable[[int], float], k: int) -> float:
    """Return the ms of a second pass, begun when ranks that waited for the last one are asleep."""
    time.sleep(0.1)
    run(k)
    return run(k)


if __name__ == "__main__":
    main()
