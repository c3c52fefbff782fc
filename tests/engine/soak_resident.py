"""Random requests under a memory budget, with the resident size after each step: run by tests in a process of its own.

    python soak_resident.py '{"model": ..., "memory_budget": "165MiB"}' NUM_REQUESTS

prints one line of JSON: the budget, the most that was resident over a bare `import torch`, what the ladder did, and how
many answers differ from those of the same model without a budget.
"""

from __future__ import annotations

import json
import random
import sys

import torch


def resident() -> int:
    """Bytes, of smaps."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Rss:"))


def main(options: dict[str, object], num_requests: int) -> dict[str, object]:
    bare = resident()
    from forerun import LLM, SamplingParams

    rng = random.Random(0)
    llm = LLM(**options)
    assert llm.plan is not None
    budget, engine = llm.config.budget_nbytes, llm.engine
    words = [
        llm.encode(text) for text in ("The sea is wide. ", "One two three. ", "A list: a, b, c. ")
    ]
    shared = (words[0] + words[1] + words[2]) * 8
    asked: list[tuple[list[int], SamplingParams]] = []
    runs, aborted, preempted, most = [], set(), 0, resident() - bare
    while len(runs) < num_requests or engine.has_work:
        if len(runs) < num_requests and rng.random() < 0.4:
            prompt = shared[: rng.choice((0, 0, rng.randrange(len(shared)), len(shared)))]
            prompt = prompt + rng.choice(words) * rng.choice((1, 1, 2, 4, 16))
            temperature, max_tokens = rng.choice((0.0, 0.0, 0.8)), rng.choice((1, 8, 16, 24, 70))
            for _ in range(rng.choice((1, 1, 1, 3))):  # n answers to one prompt
                params = SamplingParams(
                    temperature=temperature, seed=rng.getrandbits(31), max_tokens=max_tokens,
                    ignore_eos=True,
                )  # fmt: skip
                asked.append((prompt, params))
                runs.append(engine.add(prompt, params))
        if engine.requests and rng.random() < 0.01:
            aborted.add(chosen := rng.choice([*engine.requests]))
            engine.abort(chosen)
        if engine.scheduler.running and rng.random() < 0.02:
            preempted += 1
            engine.preempt(rng.choice(engine.scheduler.running).id)
        engine.step()
        most = max(most, resident() - bare)
    taken = dict(engine.ladder.taken)
    roomy = llm.within(None, "none").engine
    expected = [roomy.add(*each) for each in asked]
    while roomy.has_work:
        roomy.step()
    different = 0
    for run, other in zip(runs, expected, strict=True):
        got, wanted = run.seq.generated, other.seq.generated
        different += got != (wanted[: len(got)] if run.seq.id in aborted else wanted)
    stats = engine.stats
    return {
        "budget": budget, "most": most, "planned": llm.plan.total, "taken": taken,
        "requests": len(runs), "different": different, "aborted": len(aborted), "asked_to_preempt": preempted,
        "drafted": stats.drafted, "accepted": stats.accepted,
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(json.loads(sys.argv[1]), int(sys.argv[2]))))
