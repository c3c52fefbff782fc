"""A drafter that was trained, in the engine on prompts that were held out: what its users will see of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from forerun.core.params import SamplingParams
from forerun.engine.stats import SpecStats
from forerun.lab.bench.run import EngineSystem
from forerun.lab.train.replies import Reply
from forerun.llm import LLM

PROMPTS, MAX_TOKENS = 2, 64
"""Prompts of a domain, and tokens of an answer."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Greedy answers with every draft made in full, whatever it costs."""

    tau: dict[str, float]
    """Tokens a pass by domain, and of `all`."""
    speedup: float
    """Of decoding over plain decoding, by wall clock; the median of the prompts."""

    def __str__(self) -> str:
        return f"in the engine tau {self.tau['all']:.3f}, {self.speedup:.2f}x"


def measure(llm: LLM, replies: Sequence[Reply], drafter: str, **options: object) -> EngineRun:
    """Answer a few prompts of each domain, plain and with the drafter in turn. `llm` runs without the controller."""
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    plain = EngineSystem.of(llm, "none", params)
    drafted = EngineSystem.of(llm, drafter, params, **options)
    stats, speedups = defaultdict[str, list[SpecStats]](list), []
    for reply in _some(replies):
        prompt = reply.tokens[: reply.first]
        if not stats:
            plain.restart(prompt)
            drafted.restart(prompt)
        slow, fast = plain.answer([prompt]), drafted.answer([prompt])
        stats[reply.domain].append(fast.stats)
        stats["all"].append(fast.stats)
        speedups.append(slow.decode_s / max(fast.decode_s, 1e-9))
    tau = {name: SpecStats.total(stats[name]).tau or 1.0 for name in sorted(stats)}
    return EngineRun(tau, median(speedups))


def _some(replies: Sequence[Reply]) -> Iterator[Reply]:
    """The first replies of each domain, of different prompts."""
    seen, taken = set[tuple[int, ...]](), Counter[str]()
    for reply in replies:
        prompt = reply.tokens[: reply.first]
        if prompt not in seen and taken[reply.domain] < PROMPTS:
            seen.add(prompt)
            taken[reply.domain] += 1
            yield reply
