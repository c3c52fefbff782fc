"""Recorded answers of a model, decoded again on a clock without noise: drafts and the controller are real.

A model that knows what it will say runs in the engine itself; passes and proposals take no time but what a table of
costs says. What a prompt's answer is does not depend on how it is drafted, so every budget and the controller see the
same texts.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun._native import CostCurve
from forerun.core.arrays import Floats
from forerun.core.batch import Batch
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Seq, TopK
from forerun.drafters.base.cascade import united
from forerun.drafters.base.contract import Drafter, Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine.controller import Controller, Fixed
from forerun.engine.engine import Engine
from forerun.model.cache.base import KVCache
from forerun.model.config import ModelConfig
from forerun.model.model import Hidden

MAX_GUESSES = 6
"""Recorded guesses a position."""
AVX2 = CostCurve({1: 1.0, 2: 1.08, 4: 1.33, 8: 2.29, 16: 4.08})
AVX512 = CostCurve({1: 1.0, 2: 1.05, 4: 1.2, 8: 1.5, 16: 2.6})
"""What a pass over so many rows costs on two cores, in passes over one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and what the model says to it, in tokens."""

    id: str
    category: str
    temperature: float
    prompt: list[int]
    tokens: list[int]
    right: str = ""
    """A digit a token: how many tokens, from this one on, the recorded drafter guesses right."""


@dataclass(frozen=True, slots=True)
class World:
    """What drafts with what, and what it costs; costs in passes over one row."""

    drafter: str
    passes: CostCurve
    ask: float = 0.015
    """Asking about one sequence."""
    node: float = 0.0
    """A recorded guess of the longest draft: sequences draft together."""
    slowdown: Callable[[int], float] = lambda step: 1.0
    """Of the machine in pass i: the controller sees it, the result is counted without it."""


@dataclass(slots=True)
class Clock:
    """Time passes only where a pass or a proposal takes it."""

    world: World
    now: float = 0.0
    cost: float = 0.0
    """The same without slow-downs."""
    passes: int = 0

    def __call__(self) -> float:
        """The time."""
        return self.now

    def add(self, cost: float) -> None:
        """Something took that long."""
        self.cost += cost
        self.now += cost * self.world.slowdown(self.passes)


class Lengths(KVCache):
    """A cache of no keys and values, only lengths. No prompt shares rows with another."""

    def open(
        self, tokens: Sequence[int], *, reuse: bool = True, spare: int = 0
    ) -> tuple[int, int] | None:
        """Return a slot and no rows."""
        return super().open(tokens, reuse=False, spare=spare)

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        """Nothing to move."""

    def _copy_block(self, source: int, target: int) -> None:
        """Nothing to copy."""


class Replay:
    """A model that says the recorded answers. Its hidden state is the next token, or 0 behind the end."""

    def __init__(self, answers: Iterable[Answer], clock: Clock) -> None:
        self.texts = {tuple(a.prompt): a.prompt + a.tokens for a in answers}
        most = max(max(text) for text in self.texts.values())
        self.vocab_size = most + 2  # a wrong guess is one more than the right one
        self.config = ModelConfig("replay", self.vocab_size, 1, 1, 1, 1, 1, 1, 1 << 20)
        self.clock = clock
        self.running: list[Seq] = []

    def forward(self, batch: Batch, cache: Lengths, aux_layers: tuple[int, ...] = ()) -> Hidden:
        """The next token at every row, as if the row were on the way; time passes."""
        self.clock.passes += 1
        self.clock.add(self.clock.world.passes.predict(batch.num_rows))
        texts = {seq.slot: self.texts[tuple(seq.tokens[: seq.num_prompt])] for seq in self.running}
        coming = []
        for segment in batch.segments:
            text = texts[segment.slot]
            coming += [text[p] if p < len(text) else 0 for p in segment.positions() + 1]
        return Hidden(np.array(coming)[:, None])

    def topk(
        self, hidden: Floats, k: int, *, log_normaliser: bool = False, logits: Floats | None = None
    ) -> TopK:
        """The next token; `logits` are never asked for."""
        assert logits is None
        return TopK(hidden, np.ones(hidden.shape, np.float32))

    def new_cache(self, num_slots: int, max_len: int) -> Lengths:
        """Lengths only."""
        return Lengths(num_slots, max_len)

    def nbytes(self) -> int:
        """Weights beside which attention costs nothing."""
        return 1 << 40


class Recorded(Drafter):
    """Guesses as right as those that were recorded; behind the first wrong one nothing is right."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers = {tuple(a.prompt): a for a in answers}

    def propose_one(self, seq: Seq, budget: int) -> Draft:
        """A chain."""
        answer, done = self._answers[tuple(seq.tokens[: seq.num_prompt])], len(seq.generated)
        right = int(answer.right[done])
        coming = answer.tokens[done : done + min(budget, MAX_GUESSES)]
        return Draft.chain([t if i < right else t + 1 for i, t in enumerate(coming)])


def replay(
    answers: Sequence[Answer], world: World, num_seqs: int, controller: Controller | None = None
) -> dict[str, float]:
    """Cost of decoding by category, in plain passes; without a controller the engine's own decides."""
    clock = Clock(world)
    model = Replay(answers, clock)
    max_len = 1 + max(len(text) for text in model.texts.values())
    drafter = _drafter(answers, model, clock, num_seqs, max_len)
    cache = model.new_cache(num_seqs, max_len)
    engine = Engine(model, cache, drafter, EngineConfig())  # type: ignore[arg-type]
    engine.scheduler.reuse = False  # nothing is counted before all prompts have been read
    engine.timers.clock = clock
    model.running = engine.scheduler.running
    engine.proposer.controller = controller or engine.proposer.controller
    costs: dict[str, float] = defaultdict(float)
    for batch in batches(answers, num_seqs):
        costs[batch[0].category] += _decode(engine, batch, clock)
    return costs


def _drafter(
    answers: Sequence[Answer], model: Replay, clock: Clock, num_seqs: int, max_len: int
) -> Drafter:
    """The world's drafter, whose proposals take time."""
    world = clock.world
    target = Target(model, None, num_seqs, max_len)  # type: ignore[arg-type]

    def part(name: str) -> Drafter:
        is_recorded = name == "recorded"
        drafter = Recorded(answers) if is_recorded else DrafterSpec.of(name).build(target)
        propose = drafter.propose

        def timed(seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
            drafts = propose(seqs, budgets)
            longest = max(map(len, drafts), default=0)
            clock.add(world.ask * len(seqs) + (world.node * longest if is_recorded else 0.0))
            return drafts

        drafter.propose = timed  # type: ignore[method-assign]
        return drafter

    return united([part(name) for name in world.drafter.split("++")])


def _decode(engine: Engine, batch: Sequence[Answer], clock: Clock) -> float:
    """Answer these prompts together; the cost from when all have been read."""
    runs = [
        engine.add(a.prompt, SamplingParams(temperature=0, max_tokens=len(a.tokens))) for a in batch
    ]
    while not all(run.has_begun or run.seq.finish_reason for run in runs):
        engine.step()
    start = clock.cost
    while engine.has_work:
        engine.step()
    for run, answer in zip(runs, batch, strict=True):
        assert run.seq.generated == answer.tokens
    return clock.cost - start


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


def speedups(
    answers: Sequence[Answer], world: World, num_seqs: int, controller: Controller | None = None
) -> dict[str, float]:
    """Over plain decoding, by category and over `all`."""
    plain, found = (replay(answers, world, num_seqs, chosen) for chosen in (Fixed(0), controller))
    for costs in (plain, found):
        costs["all"] = sum(costs.values())
    return {category: cost / found[category] for category, cost in plain.items()}


def read(path: Path, temperature: float) -> list[Answer]:
    """The recorded answers at one temperature."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        answers = [Answer(**json.loads(line)) for line in file]
    return [answer for answer in answers if answer.temperature == temperature]
