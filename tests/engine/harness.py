"""Running engines in tests: drafters to run, prompts that make them draft, and scripted ones with known fates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forerun.core.batch import Batch
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, NO_FEATURES, Draft, Features, Outcome, Seq
from forerun.drafters.base.contract import Drafter
from forerun.engine.engine import Engine
from forerun.engine.sequence import SequenceState
from forerun.model.cache.base import KVCache
from forerun.model.model import Hidden, Model

LOOPING = ([1, 2, 3, 1, 2, 3, 1, 2], [5, 4, 5, 4, 5, 4, 5], [7, 1, 2, 7, 1, 2, 7, 1, 2, 7])
"""Prompts that repeat themselves, so that every drafter has something to say."""

GREEDY = SamplingParams(temperature=0, max_tokens=40)


def engine_for(
    model: Model,
    drafter: Drafter | None = None,
    *,
    max_num_seqs: int = 4,
    max_len: int = 256,
    controller: bool = False,
    cache: KVCache | None = None,
    **options: int,
) -> Engine:
    """An engine over a tiny model; without a drafter, plain decoding. Drafts in full unless told otherwise.

    Without the controller, what a drafter raises fails the test.
    """
    config = EngineConfig(controller=controller, **options)
    cache = cache or model.new_cache(max_num_seqs, max_len)
    drafter = drafter or Drafter()
    engine = Engine(model, cache, drafter, config)
    engine.proposer.isolates_errors = controller
    return engine


def complete(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[SequenceState]:
    """Run prompts together to their ends."""
    runs = [engine.add(prompt, params) for prompt in prompts]
    drain(engine)
    return runs


def drain(engine: Engine) -> None:
    """Step until nothing runs."""
    while engine.has_work:
        engine.step()


def plain(
    model: Model, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[list[int]]:
    """The reference: every prompt alone, without drafting."""
    return [complete(engine_for(model), [prompt], params)[0].seq.generated for prompt in prompts]


class Clock:
    """Time passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def delay(self, drafter: Drafter, seconds: float) -> None:
        """From now on each proposal of the drafter takes so long."""
        propose = drafter.propose

        def slow(seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
            self.now += seconds
            return propose(seqs, budgets)

        drafter.propose = slow


def timed_engine(
    model: Model, drafter: Drafter, clock: Clock, *, row_s: float, draft_s: float, **options: int
) -> Engine:
    """An engine in which a pass takes 1 s and `row_s` more for each further row, a proposal `draft_s`."""
    engine = engine_for(model, drafter, **options)
    engine.timers.clock = clock
    forward = model.forward

    def slow_forward(batch: Batch, cache: KVCache, aux_layers: tuple[int, ...] = ()) -> Hidden:
        clock.now += 1 + row_s * (batch.num_rows - 1)
        return forward(batch, cache, aux_layers)

    parts = {"config": model.config, "head": model.head, "topk": model.topk}
    engine.model = type("Timed", (), parts)()
    engine.model.forward = slow_forward
    clock.delay(drafter, draft_s)
    return engine


def _held(outcome: Outcome) -> Outcome:
    """With logits of its own: the next pass overwrites the engine's."""
    logits = outcome.logits
    return outcome._replace(logits=None if logits is None else logits.copy())


@dataclass
class Scripted(Drafter):
    """A drafter that knows the plain continuation of each prompt and is right or wrong as told.

    `script(step)` gives the depth to which a draft of that step is right, of `length` nodes.
    """

    answers: dict[tuple[int, ...], list[int]]
    script: Callable[[int], int]
    length: int = 4
    vocab_size: int = 24
    features: Features = NO_FEATURES
    draws: bool = False
    steps: dict[int, int] = field(default_factory=dict)
    began: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        self.began.append(seq.id)
        self.steps[seq.id] = 0
        self.drafts.append(EMPTY_DRAFT)
        self.outcomes.append(_held(outcome))

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        return [
            self._propose_one(seq, min(budget, self.length))
            for seq, budget in zip(seqs, budgets, strict=True)
        ]

    def _propose_one(self, seq: Seq, length: int) -> Draft:
        answer = self.answers[tuple(seq.tokens[: seq.num_prompt])]
        coming = answer[len(seq.generated) :][:length]
        right = self.script(self.steps[seq.id])
        self.steps[seq.id] += 1
        guesses = [t if i < right else (t + 1) % self.vocab_size for i, t in enumerate(coming)]
        return Draft.chain(guesses) if guesses else EMPTY_DRAFT

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        self.drafts += drafts
        self.outcomes += map(_held, outcomes)

    def end(self, seq: Seq) -> None:
        self.ended.append(seq.id)

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        return 0
