"""What drafters learn while they serve: the same requests one after the other, with and without learning between them.

Both run the same weights. After each request the one that learns takes all the steps it wants, as an idle server
would; their time is counted apart. Tokens have to be the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forerun.cli import console
from forerun.core.params import SamplingParams
from forerun.engine.loop import EngineLoop

WARM_UP = 8
"""Tokens that nothing is counted of."""
WINDOW = 8
"""Requests that a moving tau is the mean of."""


@dataclass(frozen=True, slots=True)
class RequestPair:
    """One request, by both."""

    name: str
    passes: tuple[int, int]
    """Of the target: without learning, with it."""
    emitted: tuple[int, int]
    cpu_s: tuple[float, float]
    """Of the request, all threads."""
    learn_cpu_s: float
    """Of the steps after it."""
    num_steps: int
    longest_s: float
    """Of those steps: how long a request that arrives may wait."""
    is_identical: bool


def run(
    fixed: EngineLoop,
    learning: EngineLoop,
    prompts: Sequence[tuple[str, Sequence[int]]],
    params: SamplingParams,
) -> Iterator[RequestPair]:
    """Answer named prompts in their order, in turns first and second; before that a few tokens to warm up."""
    for loop in (fixed, learning):
        loop.submit(prompts[0][1], replace(params, max_tokens=WARM_UP)).wait()
    for index, (name, tokens) in enumerate(prompts):
        found = {}
        for loop in (fixed, learning)[:: 1 if index % 2 else -1]:
            start_s = time.process_time()
            handle = loop.submit(tokens, params)
            handle.wait()
            found[loop] = handle.runs[0], time.process_time() - start_s
        (one, one_s), (other, other_s) = found[fixed], found[learning]
        start_s, times = time.process_time(), [*_learn(learning)]
        yield RequestPair(
            name,
            (one.stats.passes, other.stats.passes),
            (one.stats.emitted, other.stats.emitted),
            (one_s, other_s),
            time.process_time() - start_s,
            len(times),
            max(times, default=0.0),
            one.seq.generated == other.seq.generated,
        )


def moving(answered: Sequence[RequestPair], window: int = WINDOW) -> list[tuple[float, float]]:
    """Tau over the last `window` requests, without learning and with it."""
    found = []
    for stop in range(1, len(answered) + 1):
        part = answered[max(0, stop - window) : stop]
        found.append((_tau(part, 0), _tau(part, 1)))
    return found


def summary(answered: Sequence[RequestPair]) -> dict[str, object]:
    """Tau of the first and the second half, and what learning took."""
    half = len(answered) // 2
    halves = {"first_half": answered[:half], "second_half": answered[half:]}
    taus = {
        name: {"fixed": _tau(part, 0), "learning": _tau(part, 1)} for name, part in halves.items()
    }
    return {
        **taus,
        "gain": taus["second_half"]["learning"] / taus["second_half"]["fixed"] - 1,
        "learn_share": sum(a.learn_cpu_s for a in answered)
        / max(1e-9, sum(a.cpu_s[1] for a in answered)),
        "longest_step_s": max((a.longest_s for a in answered), default=0.0),
        "identical": sum(a.is_identical for a in answered),
        "requests": len(answered),
    }


def _learn(loop: EngineLoop) -> Iterator[float]:
    """All steps that there are, each with its time."""
    is_more = True
    while is_more:
        start_s = time.perf_counter()
        is_more = loop.idle()
        if is_more:
            yield time.perf_counter() - start_s


def _tau(part: Sequence[RequestPair], which: int) -> float:
    passes = sum(each.passes[which] for each in part)
    return sum(each.emitted[which] for each in part) / passes if passes else 1.0


def show(found: dict[str, object], answered: Sequence[RequestPair]) -> None:
    """Print tau of both halves, and what learning took."""
    lines = [
        (half.replace("_", " "), f"{taus['fixed']:.3f}", f"{taus['learning']:.3f}")
        for half in ("first_half", "second_half")
        if isinstance(taus := found[half], dict)
    ]
    report = console.report()
    report.print(console.table(("requests", "tau as it shipped", "tau learning"), lines))
    steps = sum(each.num_steps for each in answered)
    report.print(
        f"{len(answered)} requests, {found['identical']} with the same tokens; {steps} steps between them, "
        f"{found['learn_share']:.0%} of the requests' CPU time, the longest {found['longest_step_s']:.3f} s"
    )
