"""The controller on a clock without noise: real answers, real drafts, scripted costs.

    python -m dev.controller_sim record answers.jsonl [--prompts FILE ...] [--temperature T]
    python -m dev.controller_sim run answers.jsonl [--drafter suffix] [--machine avx2] [--batch 1]

`record` lets a model answer prompts plainly and writes the tokens down. `run` answers them again
with a model that knows what it will say, in the engine itself: drafts, verdicts and the controller
are real, only the passes take no time but what a machine's table says. What a prompt's answer is
does not depend on how it is drafted, so every budget and the controller see the same texts.

It prints, for each category, tokens a unit of time over those of plain decoding: the best fixed
budget, found by trying all, and the controller's. Two runs give the same digits. Only for drafters
that need no model of their own and draw nothing.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from forerun.cache.slots import SlotCache
from forerun.core.batch import Batch
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.core.types import Seq
from forerun.drafters._spec import DrafterSpec
from forerun.drafters.base import Target
from forerun.engine.controller import Controller, Fixed
from forerun.engine.engine import Engine
from forerun.nn.config import ModelConfig
from forerun.nn.model import Hidden, TopK

MACHINES = {
    "avx2": {1: 1.0, 2: 1.08, 4: 1.33, 8: 2.29, 16: 4.08},
    "vnni": {1: 1.0, 2: 1.05, 4: 1.2, 8: 1.5, 16: 2.6},
}
"""What a pass over so many rows costs, in passes over one; on straight lines between and beyond."""
PROPOSAL = 0.015
"""What it costs to ask the drafter about one sequence, in passes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and what the model says to it, in tokens."""

    id: str
    category: str
    prompt: list[int]
    tokens: list[int]


@dataclass(slots=True)
class Clock:
    """Time passes only where a pass or a proposal takes it."""

    now: float = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Lengths(SlotCache):
    """A cache of no keys and values, only lengths."""

    def nbytes(self) -> int:
        """Nothing."""
        return 0

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        """Nothing to move."""

    def _copy(self, source: int, target: int, length: int) -> None:
        """Nothing to copy."""


class Replay:
    """A model that says the recorded answers. Its hidden state is the next token, or 0 behind the end."""

    def __init__(self, answers: Iterable[Answer], costs: dict[int, float], clock: Clock) -> None:
        self.texts = {tuple(a.prompt): a.prompt + a.tokens for a in answers}
        self.vocab_size = 1 + max(max(text) for text in self.texts.values())
        self.config = ModelConfig("replay", self.vocab_size, 1, 1, 1, 1, 1, 1, 1 << 20)
        self.costs, self.clock = costs, clock
        self.running: list[Seq] = []

    def forward(self, batch: Batch, cache: Lengths, taps: tuple[int, ...] = ()) -> Hidden:
        """The next token at every row, as if the row were on the way; time passes."""
        self.clock.now += pass_cost(batch.num_rows, self.costs)
        texts = {seq.slot: self.texts[tuple(seq.tokens[: seq.num_prompt])] for seq in self.running}
        coming = []
        for segment in batch.segments:
            text = texts[segment.slot]
            coming += [text[p] if p < len(text) else 0 for p in segment.positions() + 1]
        return Hidden(torch.tensor(coming)[:, None])

    def head(self, hidden: Tensor) -> Tensor:
        """All on the next token."""
        return torch.zeros(len(hidden), self.vocab_size).scatter_(1, hidden, 1.0)

    def topk(self, hidden: Tensor, k: int) -> TopK:
        """The next token."""
        return TopK(hidden, torch.ones(hidden.shape))

    def new_cache(self, num_slots: int, max_len: int) -> Lengths:
        """Lengths only."""
        return Lengths(num_slots, max_len)

    def nbytes(self) -> int:
        """Nothing."""
        return 0


def pass_cost(num_rows: int, costs: dict[int, float]) -> float:
    """The table's entry, or what its two nearest say.

    >>> pass_cost(3, {1: 1.0, 2: 1.5, 4: 2.0})
    1.75
    >>> pass_cost(6, {1: 1.0, 2: 1.5, 4: 2.0})
    2.5
    """
    sizes = sorted(costs)
    above = next((i for i, size in enumerate(sizes) if size >= num_rows), len(sizes) - 1)
    low, high = sizes[max(0, above - 1)], sizes[max(1, above)]
    slope = (costs[high] - costs[low]) / (high - low)
    return costs[low] + slope * (num_rows - low)


def compact(answers: Iterable[Answer]) -> list[Answer]:
    """The same answers over the tokens that occur in them: the replay is quicker for it."""
    ids: dict[int, int] = {}
    number = lambda tokens: [ids.setdefault(t, 1 + len(ids)) for t in tokens]  # noqa: E731
    return [Answer(a.id, a.category, number(a.prompt), number(a.tokens)) for a in answers]


def replay(
    answers: Sequence[Answer],
    drafter: str,
    costs: dict[int, float],
    num_seqs: int,
    controller: Controller | None,
) -> dict[str, float]:
    """Time that decoding took, by category; without a controller the engine's own decides."""
    clock = Clock()
    model = Replay(answers, costs, clock)
    max_len = 1 + max(len(text) for text in model.texts.values())
    target = Target(model, None, num_seqs, max_len)  # type: ignore[arg-type]
    built = DrafterSpec.of(drafter).build(target)
    propose = built.propose

    def timed(seqs: Sequence[Seq], budgets: Sequence[int]) -> list:
        clock.now += PROPOSAL * len(seqs)
        return propose(seqs, budgets)

    built.propose = timed  # type: ignore[method-assign]
    cache = model.new_cache(num_seqs, max_len)
    engine = Engine(model, cache, built, EngineConfig())  # type: ignore[arg-type]
    engine.timers.clock = clock
    model.running = engine.scheduler.running
    engine.controller = controller or engine.controller
    seconds: dict[str, float] = defaultdict(float)
    for batch in batches(answers, num_seqs):
        seconds[batch[0].category] += _decode(engine, batch, clock)
    return seconds


def _decode(engine: Engine, batch: Sequence[Answer], clock: Clock) -> float:
    """Answer these prompts together; the time from when all have been read."""
    runs = [
        engine.add(a.prompt, SamplingParams(temperature=0, max_tokens=len(a.tokens))) for a in batch
    ]
    while not all(run.has_begun or run.seq.finish_reason for run in runs):
        engine.step()
    start = clock.now
    while engine.has_work:
        engine.step()
    for run, answer in zip(runs, batch, strict=True):
        assert run.seq.generated == answer.tokens
    return clock.now - start


def batches(answers: Sequence[Answer], size: int) -> list[list[Answer]]:
    """Prompts of one category together, in the order of the file."""
    found: list[list[Answer]] = []
    filling: dict[str, list[Answer]] = {}
    for answer in answers:
        batch = filling.get(answer.category)
        if batch is None or len(batch) == size:
            batch = filling[answer.category] = []
            found.append(batch)
        batch.append(answer)
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One category: tokens a unit of time over plain decoding's."""

    category: str
    best: float
    budget: int
    fixed: float
    auto: float


def compare(
    answers: Sequence[Answer], drafter: str, costs: dict[int, float], num_seqs: int, most: int
) -> list[Row]:
    """Every fixed budget up to `most` against the controller; the last row is over all."""
    fixed = [replay(answers, drafter, costs, num_seqs, Fixed(k)) for k in range(most + 1)]
    auto = replay(answers, drafter, costs, num_seqs, None)
    for seconds in (*fixed, auto):
        seconds["all"] = sum(seconds.values())
    rows = []
    for category in fixed[0]:
        gains = [fixed[0][category] / seconds[category] for seconds in fixed]
        best = max(range(most + 1), key=gains.__getitem__)
        rows.append(
            Row(category, gains[best], best, gains[most], fixed[0][category] / auto[category])
        )
    return rows


def record(path: Path, prompts: Sequence[str], model: str, temperature: float, limit: int) -> None:
    """Answer prompts plainly, the first `limit` of each category of a file, and write them down."""
    from forerun import LLM
    from forerun.eval.prompts import read

    llm = LLM(model, drafter="none", controller=False, max_model_len=2048)
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=128)
    with path.open("w", encoding="utf-8") as file:
        for name in prompts:
            seen: dict[str, int] = defaultdict(int)
            for prompt in read(name):
                category = (
                    prompt.category
                    if name == "builtin"
                    else f"{Path(name).stem}: {prompt.category}"
                )
                seen[prompt.category] += 1
                if seen[prompt.category] > limit:
                    continue
                run = llm.submit([{"role": "user", "content": prompt.turns[0]}], params).runs[0]
                while llm.engine.has_work:
                    llm.engine.step()
                tokens = run.seq.tokens[: run.seq.num_prompt]
                answer = Answer(prompt.id, category, tokens, run.seq.generated)
                file.write(json.dumps(asdict(answer)) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["record", "run"])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--prompts", nargs="+", default=["builtin"])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--drafter", default="suffix:shared_tokens=0")
    parser.add_argument("--machine", choices=MACHINES, nargs="+", default=[*MACHINES])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--most", type=int, default=7, help="largest fixed budget")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.action == "record":
        record(args.answers, args.prompts, args.model, args.temperature, args.limit)
        return
    lines = args.answers.read_text(encoding="utf-8").splitlines()
    answers = compact(Answer(**json.loads(line)) for line in lines)
    for machine in args.machine:
        for size in args.batch:
            rows = compare(answers, args.drafter, MACHINES[machine], size, args.most)
            print(f"{args.drafter}, {machine}, batch {size}: best fixed, all, controlled, of best")
            for row in rows:
                print(
                    f"{row.category:24s} {row.best:.3f} ({row.budget}) {row.fixed:.3f} "
                    f"{row.auto:.3f} {row.auto / row.best:.3f}"
                )


if __name__ == "__main__":
    main()
