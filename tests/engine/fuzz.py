"""Random programs of requests against plain decoding: `python -m tests.engine.fuzz [--minutes 20] [--seed 0]`.

A program is a drafter, a precision of keys and values, a memory budget and a number of threads; requests with random
features that join at random steps, some aborted, some preempted by hand. Each answer must be that of the same model
without drafts, budget, neighbours and shared prefixes. A program is a function of its seed, which is said if one fails:
`--seed N --programs 1` runs it again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from forerun import LLM, SamplingParams
from forerun.core import registry
from forerun.core.config import DEFAULT_MODEL, Precision
from forerun.core.structured import StructuredOutputsParams
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine.loop import Request
from forerun.engine.planner import Planner
from forerun.model.cache.int4 import fits_int4

MAX_LEN = 256
PRECISIONS: tuple[Precision, ...] = ("auto", "fp32", "fp16", "int8", "k8v4", "int4")
EXAMPLES = {
    "draft_model": "draft_model:model=self",
    "dflash": "dflash:model=untrained,num_draft=6,min_chance=0",
    "eagle3": "eagle3:model=untrained,num_draft=6,min_chance=0",
    "medusa": "medusa:model=untrained,num_draft=6,min_chance=0",
    "mlp_speculator": "mlp_speculator:model=untrained,num_draft=6",
}
"""Of drafters that need an option; a network that ships with the model is in `auto`."""
NEED_A_FILE = ("none", "mtp", "gemma4_assistant")
"""Drafters that need a file beyond the model, and plain decoding."""
OTHERS = (
    *("auto", "suffix++prompt_lookup", "suffix++recycling", "draft_model:model=self,num_draft=4"),
    "recycling:table=none,table_mb=0.01,shared_tokens=512",  # soon forgets
)
TEXTS = (
    "One two three four. One two three four. One two",
    "List the months of the year, then list the months of the year again, then once more:",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    'A person as JSON: {"name": "Ann", "age": 31}. Another person as JSON:',
)
SHARED = (0, 0, 1, 30, 62, 63, 64, 65, 126, 127)
"""Tokens that prompts have in common: around the ends of blocks."""
FORMS = (
    StructuredOutputsParams(regex=r"[a-z]{2,8}, [0-9]{2,4}\."),
    StructuredOutputsParams(choice=["the sea", "the sky", "neither of them"]),
    StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {"age": {"type": "integer", "maximum": 99}, "old": {"type": "boolean"}},
            "required": ["age", "old"],
            "additionalProperties": False,
        }
    ),
)


def drafters() -> list[str]:
    """Every kind that any model can have, some joined, some with other options."""
    names = [name for name in registry.names("drafters") if name not in NEED_A_FILE]
    return [*(EXAMPLES.get(name, name) for name in names), *OTHERS]


@cache
def loaded(model: str, threads: int) -> LLM:
    return LLM(model, drafter="none", threads=threads, max_model_len=MAX_LEN, max_num_seqs=4)


@cache
def plain(model: str, threads: int, kv: Precision) -> LLM:
    """Decodes one request after the other, each from its first token on."""
    llm = loaded(model, threads)._with(DrafterSpec.of("none"), kv=kv, max_num_seqs=1)
    llm.engine.scheduler.reuse = False
    return llm


@cache
def budgets(model: str, threads: int, drafter: str, kv: Precision, num_seqs: int) -> range:
    """From the smallest one that works to all that is asked for."""
    llm = loaded(model, threads)
    config = replace(llm.config, drafter=drafter, kv=kv, max_num_seqs=num_seqs)
    planner = Planner.of(config, "cpu")
    return range(planner.smallest().total, planner.plan().total + 1)


@cache
def precisions(model: str) -> list[Precision]:
    """Those that the model's heads allow."""
    config = loaded(model, 1).model.config
    has_all = all(
        fits_int4(config.heads(i)[1], config.value_dim(i)) for i in range(config.num_layers)
    )
    return [kv for kv in PRECISIONS if has_all or kv not in ("k8v4", "int4")]


@dataclass
class Asked:
    """A request and its fate."""

    prompt: list[int]
    params: SamplingParams
    joins: int
    """The step before which it comes."""
    ends: int | None = None
    """The step before which it is aborted."""
    handle: Request | None = None


@dataclass
class Program:
    """What is run; all of it is drawn from the seed."""

    seed: int
    model: str
    rng: random.Random = field(init=False, repr=False)
    drafter: str = field(init=False)
    kv: Precision = field(init=False)
    threads: int = field(init=False)
    num_seqs: int = field(init=False)
    budget: int | None = field(init=False)
    controller: bool = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.drafter = rng.choice(drafters())
        self.kv = rng.choice(precisions(self.model))
        self.threads = rng.choice((1, 1, 2))
        self.num_seqs = rng.choice((1, 2, 3, 4))
        self.controller = rng.random() < 0.3
        self.budget = None
        if rng.random() < 0.6:
            sizes = budgets(self.model, self.threads, self.drafter, self.kv, self.num_seqs)
            self.budget = sizes[int((len(sizes) - 1) * rng.random() ** 2)]

    def engine(self) -> LLM:
        changes = {"kv": self.kv, "memory_budget": self.budget, "max_num_seqs": self.num_seqs}
        changes |= {"controller": self.controller, "prefill_chunk": self.rng.choice((7, 64, 256))}
        return loaded(self.model, self.threads)._with(DrafterSpec.of(self.drafter), **changes)

    def requests(self, llm: LLM) -> list[Asked]:
        rng, asked = self.rng, []
        common = (llm.encode(TEXTS[2]) * 4)[: max(SHARED)]
        for _ in range(rng.randrange(3, 11)):
            own = llm.encode(rng.choice(TEXTS)) * rng.choice((1, 1, 2))
            prompt = common[: rng.choice(SHARED)] + own[rng.randrange(4) :]
            joins = rng.choice((0, 0, rng.randrange(60)))
            ends = joins + rng.randrange(40) if rng.random() < 0.15 else None
            asked.append(Asked(prompt, draw_params(rng), joins, ends))
        return asked


def draw_params(rng: random.Random) -> SamplingParams:
    """A request's wishes: each feature in some."""
    wishes: dict[str, Any] = {
        "temperature": rng.choice((0.0, 0.0, 0.7, 1.0)),
        "max_tokens": rng.choice((1, 8, 24, 24, 60)),
        "seed": rng.choice((rng.getrandbits(31), 2**63 - 1)),
    }
    features: dict[str, Callable[[], object]] = {
        "top_k": lambda: rng.choice((1, 5, 40)),
        "top_p": lambda: rng.choice((0.3, 0.9)),
        "min_p": lambda: rng.choice((0.02, 0.3)),
        "repetition_penalty": lambda: rng.choice((0.9, 1.3)),
        "presence_penalty": lambda: rng.choice((-0.5, 0.8)),
        "frequency_penalty": lambda: rng.choice((-0.2, 0.5)),
        "logit_bias": lambda: {rng.randrange(49152): rng.choice((-100, -3, 4)) for _ in range(5)},
        "stop": lambda: rng.choice((("the",), (" a", "\n\n"), ("one two",))),
        "logprobs": lambda: rng.choice((0, 3)),
        "prompt_logprobs": lambda: 1,
        "n": lambda: rng.choice((2, 3)),
        "max_draft": lambda: rng.choice((0, 1, 3)),
        "prediction": lambda: rng.choice(TEXTS),
    }
    wishes |= {name: draw() for name, draw in features.items() if rng.random() < 0.15}
    if rng.random() < 0.15:
        return SamplingParams(**wishes, structured_outputs=rng.choice(FORMS))
    if rng.random() < 0.3:
        return SamplingParams(**wishes, min_tokens=rng.choice((0, 6)))
    return SamplingParams(**wishes, ignore_eos=True)


def run(program: Program, seen: Counter[str]) -> None:
    """Run a program and its requests alone. Raises AssertionError where they differ, or something is left."""
    llm, rng = program.engine(), program.rng
    asked, engine = program.requests(llm), llm.engine
    step = 0
    while engine.has_work or any(one.handle is None for one in asked):
        for one in asked:
            if one.handle is None and one.joins <= step:
                one.handle = llm.submit(one.prompt, one.params)
            if one.handle is not None and one.ends == step:
                one.handle.cancel()
        if engine.scheduler.running and rng.random() < 0.03:
            engine.preempt(rng.choice(engine.scheduler.running).id)
        llm.loop.step()
        step += 1
        assert step < 20_000, "it does not end"
    for one in asked:
        check(program, one)
    assert engine.cache.pool.num_used == 0, "blocks leak"
    left = (*engine.sequences, *llm.loop._requests, *engine.scheduler.waiting)
    assert not left, "requests leak"
    stats = engine.stats
    assert stats.drafter_errors == 0
    seen["programs"] += 1
    seen["requests"] += len(asked)
    seen["drafted"] += stats.drafted
    seen["accepted"] += stats.accepted
    seen["rejected"] += stats.rejected
    seen["preempted"] += engine.scheduler.memory_steps["preempted"]
    seen["reused"] += engine.scheduler.num_reused
    seen["within a budget"] += program.budget is not None


def check(program: Program, one: Asked) -> None:
    """The answer is the one of plain decoding, or a beginning of it if it was aborted."""
    assert one.handle is not None
    found = one.handle.output()
    llm = plain(program.model, program.threads, program.kv)
    wanted = llm.generate(one.prompt, replace(one.params, max_draft=None, prediction=None))[0]
    for got, right in zip(found.outputs, wanted.outputs, strict=True):
        ids = [*right.token_ids]
        if got.finish_reason == "abort":
            assert [*got.token_ids] == ids[: len(got.token_ids)], (one.params, "aborted")
            continue
        assert [*got.token_ids] == ids, one.params
        assert (got.text, got.finish_reason) == (right.text, right.finish_reason), one.params
        assert got.logprobs == right.logprobs, one.params
    if all(got.finish_reason != "abort" for got in found.outputs):
        assert found.prompt_logprobs == wanted.prompt_logprobs, one.params


def fuzz(model: str, minutes: float, seed: int, most: int | None = None) -> Counter[str]:
    """Programs of consecutive seeds until the time is over; what was seen of them."""
    seen: Counter[str] = Counter()
    end_s = time.monotonic() + 60 * minutes
    while time.monotonic() < end_s and (most is None or seen["programs"] < most):
        number = seed + seen["programs"]
        program = None
        try:
            program = Program(number, model)
            run(program, seen)
        except Exception as error:
            again = f"python -m tests.engine.fuzz --seed {number} --programs 1"
            raise AssertionError(f"{program or number} fails: {again}") from error
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=None)
    given = parser.parse_args()
    print(dict(fuzz(given.model, given.minutes, given.seed, given.programs)))
