"""Random requests under a memory budget, with the resident size after each step: run by tests in a process of its own.

    python soak_resident.py '{"model": ..., "memory_budget": "180MiB"}' NUM_REQUESTS

prints one line of JSON: the budget, the most that was resident, what memory pressure did,
and how many answers differ from those of the same model without a budget. What it keeps itself of a request is small.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from forerun import LLM, SamplingParams

MAX_WAITING = 32
WORDS = ("The sea is wide. ", "One two three. ", "A list: a, b, c. ")


class Request(NamedTuple):
    """What was asked."""

    num_shared: int
    words: int
    num_times: int
    temperature: float
    max_tokens: int
    seed: int

    @classmethod
    def draw(cls, rng: random.Random, longest: int) -> Request:
        return cls(
            rng.choice((0, 0, rng.randrange(longest), longest)),
            rng.randrange(len(WORDS)),
            rng.choice((1, 1, 2, 4, 16)),
            rng.choice((0.0, 0.0, 0.8)),
            rng.choice((1, 8, 16, 24, 70)),
            rng.getrandbits(31),
        )

    def spelled(self, words: list[list[int]]) -> tuple[list[int], SamplingParams]:
        from forerun import SamplingParams

        shared = (words[0] + words[1] + words[2]) * 8
        params = SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            ignore_eos=True,
        )
        return shared[: self.num_shared] + words[self.words] * self.num_times, params


def resident() -> int:
    """Bytes, of smaps."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Rss:"))


def main(options: dict[str, object], num_requests: int) -> dict[str, object]:
    from forerun import LLM

    rng = random.Random(0)
    llm = LLM(**options)
    assert llm.plan is not None
    budget, engine = llm.config.budget_nbytes, llm.engine
    words = [llm.encode(text) for text in WORDS]
    longest = 8 * sum(map(len, words))
    asked: list[Request] = []
    answers, aborted, most = {}, set(), resident()
    running = {}
    while len(asked) < num_requests or engine.has_work:
        room = len(asked) < num_requests and len(engine.scheduler.waiting) < MAX_WAITING
        if room and rng.random() < 0.4:
            first = Request.draw(rng, longest)
            for _ in range(rng.choice((1, 1, 1, 3))):  # n answers to one prompt
                asked.append(first._replace(seed=rng.getrandbits(31)))
                running[len(asked) - 1] = engine.add(*asked[-1].spelled(words))
        if running and rng.random() < 0.01:
            aborted.add(chosen := rng.choice([*running]))
            engine.abort(running[chosen].seq.id)
        if engine.scheduler.running and rng.random() < 0.02:
            engine.preempt(rng.choice(engine.scheduler.running).id)
        engine.step()
        for i in [i for i, run in running.items() if run.seq.id not in engine.sequences]:
            answers[i] = array("i", running.pop(i).seq.generated)
        most = max(most, resident())
    taken = dict(engine.scheduler.memory_steps)
    different = num_different(llm, asked, answers, aborted)
    stats = engine.stats
    return {
        "budget": budget, "most": most, "planned": llm.plan.total, "taken": taken,
        "requests": len(asked), "different": different, "aborted": len(aborted),
        "drafted": stats.drafted, "accepted": stats.accepted, "drafter": llm.plan.drafter.name,
    }  # fmt: skip


def num_different(
    llm: LLM, asked: list[Request], answers: dict[int, array[int]], aborted: set[int]
) -> int:
    """Answers that are not those of an engine with room for all, undrafted."""
    roomy, different = llm.with_drafter("none", memory_budget=None).engine, 0
    words = [llm.encode(text) for text in WORDS]
    for start in range(0, len(asked), 64):
        part = [roomy.add(*each.spelled(words)) for each in asked[start : start + 64]]
        while roomy.has_work:
            roomy.step()
        for i, run in enumerate(part, start):
            got, wanted = [*answers[i]], run.seq.generated
            different += got != (wanted[: len(got)] if i in aborted else wanted)
    return different


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]), int(sys.argv[2]))))
