"""The measuring itself: the same prompts to every system, one after the other, round by round.

Every step of every conversation is answered by plain decoding first, then by each drafter and peer: A B C A B C. So
whatever the machine does in the meantime, it does to all. Each round begins with fresh engines: no system meets a
prompt it has answered before. What earlier prompts of a round taught a drafter, it may use, as in a real service.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import TypeVar

from forerun.cli import tables
from forerun.core.config import EngineConfig
from forerun.core.errors import ForerunError
from forerun.core.params import SamplingParams
from forerun.drafters.base.parse import split_list
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine.engine import Engine
from forerun.engine.stats import SpecStats
from forerun.lab import provenance
from forerun.lab.bench.measurement import Measurement, Round
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.store import Store
from forerun.llm import LLM
from forerun.system.device import peak_nbytes
from forerun.text.tokenizer import TextStream, Tokenizer

PLAIN = "none"
WARM_UP_TOKENS = 8

Prompt = Sequence[int]
Message = dict[str, str]
Encode = Callable[[Sequence[Message]], list[int]]
T = TypeVar("T")


class PeerError(ForerunError):
    """A peer cannot run; the message goes into the report."""


class System(ABC):
    """What answers prompts: a drafter in our engine, or a peer; `quant` if not the weights as in the file."""

    name: str
    peer: str | None = None
    quant: str | None = None
    texts: Sequence[str] = ()
    """Of its last answers, if it is ours."""

    @abstractmethod
    def restart(self, warm_up: Prompt) -> None:
        """Forget everything but the weights, and warm up. Raises PeerError."""

    @abstractmethod
    def answer(
        self, prompts: Sequence[Prompt], lengths: Sequence[int] | None = None
    ) -> Measurement:
        """Answer the prompts together; a peer generates `lengths` tokens. Raises PeerError."""

    @abstractmethod
    def close(self) -> None:
        """Free its memory and processes."""


@dataclass
class EngineSystem(System):
    """A drafter in our engine; `new_engine` builds both over the loaded weights."""

    name: str
    new_engine: Callable[[], Engine]
    tokenizer: Tokenizer
    params: SamplingParams
    _engine: Engine | None = None

    @classmethod
    def of(cls, llm: LLM, drafter: str, params: SamplingParams, **options: object) -> EngineSystem:
        """Run a drafter with `options` over a loaded model."""

        def new_engine() -> Engine:
            return llm.with_drafter(drafter, **options).engine

        return cls(drafter, new_engine, llm.tokenizer, params)

    def restart(self, warm_up: Prompt) -> None:
        """Make a new engine, whose memory a short answer has touched."""
        self._engine = None  # freed before the next one is built
        engine = self._engine = self.new_engine()
        engine.add(warm_up, SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS))
        while engine.has_work:
            engine.step()

    def answer(
        self, prompts: Sequence[Prompt], lengths: Sequence[int] | None = None
    ) -> Measurement:
        """Run the prompts together. Decoding is counted from when all have their first token."""
        engine = self._engine
        assert engine is not None, "restart comes first"
        start_s = time.perf_counter()
        runs = [engine.add(p, self.params, TextStream(self.tokenizer)) for p in prompts]
        while any(run.first_token_s is None for run in runs):
            engine.step()
        begin_s, num_early = time.perf_counter(), sum(len(run.seq.generated) for run in runs)
        timers = engine.timers
        draft_s, verify_s = timers.draft_s, timers.verify_s
        while engine.has_work:
            engine.step()
        end_s = time.perf_counter()
        ids = [[*run.seq.generated] for run in runs]
        self.texts = [run.text for run in runs]
        return Measurement(
            self.name,
            token_ids=ids,
            ttft_s=[run.ttft_s or 0.0 for run in runs],
            prefill_s=begin_s - start_s,
            decode_s=end_s - begin_s,
            decode_tokens=sum(map(len, ids)) - num_early,
            draft_s=timers.draft_s - draft_s,
            verify_s=timers.verify_s - verify_s,
            stats=SpecStats.total(run.stats for run in runs),
            peak_rss_mb=round(peak_nbytes() / 2**20, 1),
            most_blocks=engine.cache.pool.most_used,
        )

    def close(self) -> None:
        """Free the engine and its memory."""
        self._engine = None


@dataclass(slots=True)
class Bench:
    """All measurements of a run. `systems[0]` is plain decoding: its answers are the others' measure."""

    groups: Sequence[PromptGroup]
    systems: Sequence[System]
    encode: Encode
    store: Store
    num_rounds: int = 1
    _lost: dict[str, str] = field(default_factory=dict)
    """Systems that cannot run, and why."""

    @property
    def num_steps(self) -> int:
        """How often `steps` yields."""
        return self.num_rounds * len(self.groups)

    @property
    def rounds(self) -> list[Round]:
        """What was measured, now or earlier."""
        return [Round.from_json(result) for result in self.store.results.values()]

    def run(self, what: str) -> None:
        """Measure all with a bar of progress, and free the systems."""
        try:
            for _ in tables.track(self.steps(), what, self.num_steps):
                pass
        finally:
            for system in self.systems:
                system.close()

    def steps(self) -> Iterator[PromptGroup]:
        """Measure every group in every round; what the store has of all these systems is not repeated."""
        names = {system.name for system in self.systems}
        known = {r.key for r in self.rounds if names <= {m.system for m in r.measurements}}
        for number in range(self.num_rounds):
            is_fresh = False
            for group in self.groups:
                measured = Round(group.id, group.category, number, len(group.prompts), [])
                if measured.key not in known:
                    if not is_fresh:
                        self._restart()
                        is_fresh = True
                    measured = replace(measured, measurements=self._measure(group))
                    self.store.add(measured.key, asdict(measured))
                yield group

    def _restart(self) -> None:
        warm_up = self.encode([{"role": "user", "content": "Say hello."}])
        for system in self.systems:
            self._attempt(system, partial(system.restart, warm_up))

    def _measure(self, group: PromptGroup) -> list[Measurement]:
        """All steps of a group, answered by every system; each conversation goes on with the plain answers."""
        chats: list[list[Message]] = [[] for _ in group.prompts]
        done: dict[str, list[Measurement]] = {system.name: [] for system in self.systems}
        for step in range(group.num_steps):
            open_chats = [i for i, prompt in enumerate(group.prompts) if step < len(prompt.turns)]
            for i in open_chats:
                chats[i].append({"role": "user", "content": group.prompts[i].turns[step]})
            prompts = [self.encode(chats[i]) for i in open_chats]
            lengths: list[int] | None = None
            for system in self.systems:
                answer = self._attempt(system, partial(system.answer, prompts, lengths))
                if answer is not None:
                    done[system.name].append(answer)
                    lengths = lengths or [len(ids) for ids in answer.token_ids]
            for i, text in zip(open_chats, self.systems[0].texts, strict=True):
                chats[i].append({"role": "assistant", "content": text})
        return [self._measurement(system, done[system.name]) for system in self.systems]

    def _attempt(self, system: System, action: Callable[[], T]) -> T | None:
        """Return an action's result; None for a peer that fails, which is left out from then on and reported."""
        if system.name in self._lost:
            return None
        try:
            return action()
        except PeerError as error:
            self._lost[system.name] = str(error)
            return None

    def _measurement(self, system: System, answers: Sequence[Measurement]) -> Measurement:
        error = self._lost.get(system.name)
        named = Measurement(system.name, system.peer, system.quant, error=error)
        return named if error else named.total(answers)


def drafters(llm: LLM, given: str, baseline: str | None, params: SamplingParams) -> list[System]:
    """Make plain decoding, then the drafters in the order given, and the one they are compared with."""
    named = [*split_list(given), *([baseline] if baseline else [])]
    for spec in named:
        DrafterSpec.of(spec)  # a mistyped name is refused before anything is measured
    specs = dict.fromkeys([PLAIN, *(resolved(llm, spec) for spec in named)])
    return [EngineSystem.of(llm, spec, params) for spec in specs]


def resolved(llm: LLM, drafter: str) -> str:
    """Name a drafter as its measurements do; `auto` is what it stands for with this model."""
    is_auto = DrafterSpec.of(drafter).is_auto
    return llm.with_drafter(drafter).drafter_spec.text() if is_auto else drafter


def changed(params: SamplingParams) -> dict[str, object] | None:
    """Return the sampling options given besides tokens, temperature, seed and form."""
    neutral = SamplingParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        seed=params.seed,
        structured_outputs=params.structured_outputs,
    )
    options = {field.name: getattr(params, field.name) for field in fields(params)}
    return {k: v for k, v in options.items() if v != getattr(neutral, k)} or None


def origin(
    config: EngineConfig, llm: LLM, params: SamplingParams, *, task: str, batch: int
) -> dict[str, object]:
    """Say what the measurements depend on."""
    form = params.structured_outputs
    return provenance.origin(
        config,
        llm,
        task=task,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        batch=batch,
        seed=params.seed,
        max_model_len=llm.max_len,
        controller=config.controller,
        draft_budget=config.draft_budget,
        form=None if form is None else form.source,
        sampling=changed(params),
    )
