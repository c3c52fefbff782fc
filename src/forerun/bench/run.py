"""The measuring itself: the same prompts to every contender, one after the other, round by round.

Every turn of every unit is answered by plain decoding first, then by each drafter and peer: A B C A B C. So whatever
the machine does in the meantime, it does to all. Each round begins with fresh engines: no contender meets a prompt it
has answered before. What earlier prompts of the same round taught a drafter, it may use, as in a real service.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from forerun.bench.record import Measurement, Record
from forerun.bench.workload import Conversations, Message, Unit
from forerun.core.params import SamplingParams
from forerun.engine.engine import Engine
from forerun.engine.stats import SpecStats
from forerun.formats.tokenizer import TextStream, Tokenizer

PLAIN = "none"
WARM_UP_TOKENS = 8

Prompt = Sequence[int]
Encode = Callable[[Sequence[Message]], list[int]]
T = TypeVar("T")


@dataclass(slots=True)
class Answer:
    """What a contender said to the prompts of one turn, and how long it took."""

    token_ids: list[tuple[int, ...]]
    texts: list[str]
    ttft_s: list[float]
    prefill_s: float
    decode_s: float
    decode_tokens: int
    draft_s: float = 0.0
    verify_s: float = 0.0
    stats: SpecStats = field(default_factory=SpecStats)


class PeerError(Exception):
    """A peer cannot run; the message goes into the report."""


class Contender(Protocol):
    """Someone who answers prompts: a drafter in our engine, or a peer; `quant` if not the weights as in the file."""

    name: str
    peer: str | None
    quant: str | None

    def restart(self, warm_up: Prompt) -> None:
        """Forget everything but the weights, and warm up. Raises PeerError."""
        ...

    def answer(self, prompts: Sequence[Prompt], lengths: Sequence[int] | None) -> Answer:
        """Answer the prompts together; a peer generates as many tokens as `lengths` says. Raises PeerError."""
        ...

    def peak_rss_mb(self) -> float:
        """The most memory its process held so far."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class EngineContender:
    """A drafter in our engine; `new_engine` builds both over the loaded weights."""

    peer: str | None = None
    quant: str | None = None

    def __init__(
        self,
        name: str,
        new_engine: Callable[[], Engine],
        tokenizer: Tokenizer,
        params: SamplingParams,
    ) -> None:
        self.name = name
        self._new_engine = new_engine
        self._tokenizer = tokenizer
        self._params = params
        self._engine: Engine | None = None

    def restart(self, warm_up: Prompt) -> None:
        """A new engine, whose memory a short answer has touched."""
        self._engine = None  # freed before the next one is built
        engine = self._engine = self._new_engine()
        engine.add(warm_up, SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS))
        while engine.has_work:
            engine.step()

    def answer(self, prompts: Sequence[Prompt], lengths: Sequence[int] | None = None) -> Answer:
        """Run the prompts together. Decoding is counted from when all have their first token."""
        engine = self._engine
        assert engine is not None, "restart comes first"
        start_s = time.perf_counter()
        runs = [engine.add(p, self._params, TextStream(self._tokenizer)) for p in prompts]
        while any(run.first_token_s is None for run in runs):
            engine.step()
        begin_s, num_early = time.perf_counter(), sum(len(run.seq.generated) for run in runs)
        timers = engine.timers
        draft_s, verify_s = timers.draft_s, timers.verify_s
        while engine.has_work:
            engine.step()
        end_s = time.perf_counter()
        stats = SpecStats()
        for run in runs:
            stats.add(run.stats)
        ids = [tuple(run.seq.generated) for run in runs]
        return Answer(
            token_ids=ids,
            texts=[run.text for run in runs],
            ttft_s=[run.ttft_s or 0.0 for run in runs],
            prefill_s=begin_s - start_s,
            decode_s=end_s - begin_s,
            decode_tokens=sum(map(len, ids)) - num_early,
            draft_s=timers.draft_s - draft_s,
            verify_s=timers.verify_s - verify_s,
            stats=stats,
        )

    def peak_rss_mb(self) -> float:
        """Of this process, which all our drafters share."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1024 if sys.platform != "darwin" else 1024**2), 1)

    def close(self) -> None:
        """Free the engine."""
        self._engine = None


class Bench:
    """All measurements of a run. `contenders[0]` is plain decoding: its answers are the others' measure."""

    def __init__(
        self,
        units: Sequence[Unit],
        contenders: Sequence[Contender],
        encode: Encode,
        record: Record,
        *,
        num_rounds: int = 1,
    ) -> None:
        assert contenders[0].name == PLAIN
        self.units = units
        self.contenders = contenders
        self.record = record
        self.num_rounds = num_rounds
        self._encode = encode
        self._lost: dict[str, str] = {}
        """Contenders that cannot run, and why."""

    @property
    def num_steps(self) -> int:
        """How often `steps` yields."""
        return self.num_rounds * len(self.units)

    def steps(self) -> Iterator[Unit]:
        """Measure every unit in every round, noting each when it is whole; what the record holds is not repeated."""
        names = [contender.name for contender in self.contenders]
        for round_ in range(self.num_rounds):
            is_fresh = False
            for unit in self.units:
                if not self.record.has(unit.id, round_, names):
                    if not is_fresh:
                        self._restart()
                        is_fresh = True
                    self.record.forget(unit.id, round_)
                    self.record.add(self._measure(unit, round_))
                yield unit

    def _restart(self) -> None:
        warm_up = self._encode([{"role": "user", "content": "Say hello."}])
        for contender in self.contenders:
            self._attempt(contender, partial(contender.restart, warm_up))

    def _measure(self, unit: Unit, round_: int) -> list[Measurement]:
        """All turns of a unit, answered by everyone."""
        chats = Conversations(unit)
        done: dict[str, list[Answer]] = {contender.name: [] for contender in self.contenders}
        for turn in range(unit.num_turns):
            prompts = [self._encode(messages) for messages in chats.ask(turn)]
            lengths: list[int] | None = None
            for contender in self.contenders:
                answer = self._attempt(contender, partial(contender.answer, prompts, lengths))
                if answer is not None:
                    done[contender.name].append(answer)
                    lengths = lengths or [len(ids) for ids in answer.token_ids]
            chats.answer(turn, done[PLAIN][turn].texts)
        return [self._measurement(c, unit, round_, done[c.name]) for c in self.contenders]

    def _attempt(self, contender: Contender, action: Callable[[], T]) -> T | None:
        """Its result; a peer that fails is out of the race with its reason, but never silently dropped."""
        if contender.name in self._lost:
            return None
        try:
            return action()
        except PeerError as error:
            self._lost[contender.name] = str(error)
            return None

    def _measurement(
        self, contender: Contender, unit: Unit, round_: int, answers: Sequence[Answer]
    ) -> Measurement:
        empty = Measurement(
            contender.name,
            unit.id,
            unit.category,
            round_,
            len(unit.prompts),
            contender.peer,
            contender.quant,
        )
        if contender.name in self._lost:
            return replace(empty, error=self._lost[contender.name])
        stats = SpecStats()
        for answer in answers:
            stats.add(answer.stats)
        return replace(
            empty,
            token_ids=tuple(ids for answer in answers for ids in answer.token_ids),
            decode_tokens=sum(answer.decode_tokens for answer in answers),
            prefill_s=sum(answer.prefill_s for answer in answers),
            decode_s=sum(answer.decode_s for answer in answers),
            ttft_s=tuple(seconds for answer in answers for seconds in answer.ttft_s),
            draft_s=sum(answer.draft_s for answer in answers),
            verify_s=sum(answer.verify_s for answer in answers),
            passes=stats.passes,
            emitted=stats.emitted,
            drafted=stats.drafted,
            accepted=stats.accepted,
            drafted_by_depth=tuple(stats.drafted_by_depth),
            accepted_by_depth=tuple(stats.accepted_by_depth),
            peak_rss_mb=contender.peak_rss_mb(),
        )
