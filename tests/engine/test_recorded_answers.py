"""The controller must stay as good as it is: recorded answers of a real model, decoded again on a clock without noise.

Each cell of fixtures/bounds.txt is the speed-up over plain decoding of eight prompts of a kind, the mean over five
orders: a single one differs by some hundredths from the next. Nothing is random: a change that leaves the
controller alone leaves the digits alone. A change that lowers a cell must say why it is right;
`python -m tests.engine.test_recorded_answers` prints the table anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from forerun._native import CostCurve
from tests.engine.recorded import AVX2, AVX512, Answer, World, batches, read, replay

FIXTURES = Path(__file__).parent / "fixtures"
ANSWERS, BOUNDS = FIXTURES / "answers.jsonl.gz", FIXTURES / "bounds.txt"
BATCHES = (1, 4, 8)
NUM_ORDERS = 5
TOLERANCE = 0.02
TOLERANCE_OF_ONE, TOLERANCE_OF_ALL = 0.12, 0.03
"""Of a kind, and of all prompts, in a single order: which prompts share a batch moves a kind by up to 0.1."""
EXPERTS = CostCurve({1: 1.0, 2: 1.43, 4: 2.14, 8: 3.1, 16: 4.0})
"""gpt-oss-20b, by the bytes of the experts that passes read, 4 of 32 chosen by each row at random."""
EXPERTS_ALIKE = CostCurve({1: 1.0, 2: 1.23, 4: 1.64, 8: 2.3, 16: 3.2})
"""The same where all rows of a pass have two of their four in common."""


def restless(step: int) -> float:
    """A machine that runs at half its speed for every other 40 passes, and hangs for ten passes now and then."""
    return 10.0 if step % 67 == 66 else 2.0 if step // 40 % 2 else 1.0


WORLDS = {
    "suffix, AVX2": (0.0, World("suffix:shared_tokens=0", AVX2)),
    "suffix, AVX-512, restless": (0.0, World("suffix:shared_tokens=0", AVX512, slowdown=restless)),
    "suffix, AVX2, sampled": (1.0, World("suffix:shared_tokens=0", AVX2)),
    "lookahead, AVX-512, restless, sampled": (
        1.0,
        World("lookahead:window=0", AVX512, slowdown=restless),
    ),
    "draft model, AVX2": (0.0, World("recorded", AVX2, node=0.15)),
    "suffix, experts": (0.0, World("suffix:shared_tokens=0", EXPERTS)),
    "suffix, experts alike": (0.0, World("suffix:shared_tokens=0", EXPERTS_ALIKE)),
    "expensive draft model, AVX2": (0.0, World("recorded", AVX2, node=0.8)),
}


@cache
def answers(temperature: float, order: int = 0) -> list[Answer]:
    found = read(ANSWERS, temperature)
    if order:
        random.Random(order).shuffle(found)
    return found


def plain_costs(world: World, answers: list[Answer], num_seqs: int) -> dict[str, float]:
    """Of plain decoding, by category: a pass over all sequences of a batch that have not ended."""
    costs: dict[str, float] = {}
    for batch in batches(answers, num_seqs):
        lengths = [len(answer.tokens) for answer in batch]
        rows = (sum(length > i for length in lengths) for i in range(1, max(lengths)))
        costs.setdefault(batch[0].category, 0.0)
        costs[batch[0].category] += sum(map(world.passes.predict, rows))
    return costs


def speedups(name: str, num_seqs: int, order: int = 0) -> dict[str, float]:
    temperature, world = WORLDS[name]
    chosen = answers(temperature, order)
    plain = plain_costs(world, chosen, num_seqs)
    found = replay(chosen, world, num_seqs)
    return {category: plain[category] / found[category] for category in answered(chosen)} | {
        "all": sum(plain.values()) / sum(found.values())
    }


def answered(answers: list[Answer]) -> list[str]:
    return [*dict.fromkeys(answer.category for answer in answers)]


def means(name: str, num_seqs: int) -> dict[str, float]:
    orders = [speedups(name, num_seqs, order) for order in range(NUM_ORDERS)]
    return {kind: fmean(each[kind] for each in orders) for kind in orders[0]}


def bounds() -> Iterator[tuple[str, int, dict[str, float]]]:
    head, *lines = BOUNDS.read_text(encoding="utf-8").splitlines()
    for line in lines:
        name, numbers = line.split("|")
        num_seqs, *cells = numbers.split()
        yield name.strip(), int(num_seqs), dict(zip(head.split(), map(float, cells), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_seqs", "bound"), [*bounds()])
def test_no_kind_of_prompt_becomes_slower(name, num_seqs, bound):
    found = means(name, num_seqs)
    assert found.keys() == bound.keys()
    slower = {kind: found[kind] for kind in found if found[kind] < bound[kind] - TOLERANCE}
    assert not slower, f"was {bound}"


@pytest.mark.parametrize(("name", "num_seqs", "bound"), [*bounds()])
def test_all_prompts_in_one_order_are_about_as_fast(name, num_seqs, bound):
    found = speedups(name, num_seqs)
    slower = {kind: found[kind] for kind in found if found[kind] < bound[kind] - TOLERANCE_OF_ONE}
    assert found["all"] >= bound["all"] - TOLERANCE_OF_ALL
    assert not slower, f"was {bound}"


def test_every_world_and_batch_has_its_bounds():
    assert {(name, num_seqs) for name, num_seqs, _ in bounds()} == {
        (name, num_seqs) for name in WORLDS for num_seqs in BATCHES
    }


if __name__ == "__main__":
    kinds = [*answered(answers(0.0)), "all"]
    print(" " * 42 + "".join(f"{kind:>10s}" for kind in kinds))
    for world in WORLDS:
        for size in BATCHES:
            row = means(world, size)
            print(f"{world:40s}| {size}" + "".join(f"{row[kind]:10.3f}" for kind in kinds))
