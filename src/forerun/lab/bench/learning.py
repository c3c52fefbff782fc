"""What drafters learn while they serve: the same requests one after the other, with and without learning between them.

Both run the same weights. After each request the one that learns takes all the steps it wants, as an idle server
would; their time is counted apart. Tokens have to be the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forerun.cli import console
from forerun.core.params import SamplingParams
from forerun.drafting.spec import DrafterSpec
from forerun.engine.loop import EngineLoop
from forerun.lab.output import Column, show_table
from forerun.llm import LLM

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
    llm: LLM,
    spec: DrafterSpec,
    prompts: Sequence[tuple[str, Sequence[int]]],
    params: SamplingParams,
) -> list[RequestPair]:
    """Answer named prompts in their order, by turns first without learning and with it; nothing of it is kept.

    Before that a few tokens warm both up.
    """
    with TemporaryDirectory() as folder:
        target = replace(llm.target(), learned_in=Path(folder))
        fixed, learning = (
            llm.with_drafter(spec.build(replace(target, learn=is_learning))).loop
            for is_learning in (False, True)
        )
        for loop in (fixed, learning):
            loop.submit(prompts[0][1], replace(params, max_tokens=WARM_UP)).wait()
        return [
            _pair(name, tokens, (fixed, learning), params, is_fixed_first=bool(index % 2))
            for index, (name, tokens) in enumerate(console.track(prompts, "answering"))
        ]


def _pair(
    name: str,
    tokens: Sequence[int],
    loops: tuple[EngineLoop, EngineLoop],
    params: SamplingParams,
    *,
    is_fixed_first: bool,
) -> RequestPair:
    """Answer a prompt by both, then let the second learn all that it wants."""
    found = {}
    for loop in loops if is_fixed_first else loops[::-1]:
        start_s = time.process_time()
        handle = loop.submit(tokens, params)
        handle.wait()
        found[loop] = handle.runs[0], time.process_time() - start_s
    (one, one_s), (other, other_s) = (found[loop] for loop in loops)
    start_s, times = time.process_time(), list[float]()
    is_more = True
    while is_more:
        step_s = time.perf_counter()
        is_more = loops[1].idle()
        times += [time.perf_counter() - step_s] if is_more else []
    return RequestPair(
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
    stops = range(1, len(answered) + 1)
    parts = [answered[max(0, stop - window) : stop] for stop in stops]
    return [(_tau(part, 0), _tau(part, 1)) for part in parts]


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


def _tau(part: Sequence[RequestPair], which: int) -> float:
    passes = sum(each.passes[which] for each in part)
    return sum(each.emitted[which] for each in part) / passes if passes else 1.0


def show(found: Mapping[str, Any], answered: Sequence[RequestPair]) -> None:
    """Print tau of both halves, and what learning took."""
    halves = [{"requests": h.replace("_", " "), **found[h]} for h in ("first_half", "second_half")]
    columns: dict[str, Column] = {"requests": "requests", "tau as it shipped": ("fixed", 3)}
    show_table(halves, columns | {"tau learning": ("learning", 3)})
    steps = sum(each.num_steps for each in answered)
    console.report().print(
        f"{len(answered)} requests, {found['identical']} with the same tokens; {steps} steps between them, "
        f"{found['learn_share']:.0%} of the requests' CPU time, the longest {found['longest_step_s']:.3f} s"
    )
