"""What the engine's own work takes of a step: microseconds by phase, over passes that take none.

A model answers prompts, and what its passes gave of the answers is kept. Then the engine answers them again, with that
in the place of passes: every row that is on the way has its own states and likeliest tokens, so drafts are accepted or
rejected as they really are, and a token that differs is an error. What is timed is the engine and the tables that
draft; passes and the networks' growth of trees are left out: another processor, or a device, takes another time for
them.

Rows are said to cost nothing, so drafts are as large as they get: the most that the engine has to do in a step.

D width of the model, V vocabulary, T tokens of a text, R rows of a pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError, ForerunError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.core.types import TaskPrompt, TopK
from forerun.decoding.stops import StopChecker
from forerun.engine import engine
from forerun.engine.sequence import SequenceStep
from forerun.lab.output import Column, show_table
from forerun.llm import LLM
from forerun.model.backends.native import NativeDecoder
from forerun.system.signals import handled_later

PASS_S = 0.01
"""What a pass of any number of rows is said to take."""
PHASES = ("schedule", "propose", "pack", "verify", "text", "emit", "learn", "deliver", "step")
"""`deliver` hands events to their requests; `step` is what no other phase has."""
LEFT_OUT = "left out"
TOP_K = 32
"""Likeliest tokens of each row that are kept, at least."""
FAR_BELOW, FAR_ABOVE = -1e4, 1e4
"""Logits of tokens that do not come, and of the one that comes."""
FORM = StructuredOutputsParams(
    json={
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("title", "summary", "advice")},
        "required": ["title", "summary", "advice"],
        "additionalProperties": False,
    }
)
KINDS = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "streamed": SamplingParams(temperature=0, ignore_eos=True),
    "sampled": SamplingParams(temperature=1, seed=1, ignore_eos=True),
    "grammar": SamplingParams(temperature=0, structured_outputs=FORM),
}
"""How answers are asked for; those that are `streamed` are read event by event."""

clock = time.thread_time_ns
"""Of this thread's own work: what other programs do counts for less."""
Call = Callable[..., Any]


class Answer(NamedTuple):
    """The tokens of a prompt and its answer; of all but the last its states (T - 1, D), and what is likely after it."""

    num_prompt: int
    tokens: list[int]
    last: Floats
    aux: tuple[Floats, ...]
    top: TopK


@dataclass(slots=True)
class StepTimes:
    """Nanoseconds of one step, by phase, each without those inside it."""

    spent: Counter[str] = field(default_factory=Counter)
    num_seqs: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    is_steady: bool = False
    """No prompt was read, and no sequence began or ended."""

    @property
    def total(self) -> int:
        """Of all phases."""
        return sum(self.spent[phase] for phase in PHASES)


class Probes:
    """Times functions by phase, and takes off what that itself takes."""

    def __init__(self) -> None:
        self.now = StepTimes()
        self._inner: list[int] = []
        """Of each call that has not ended: what the calls in it took."""
        self._own = self._around = 0
        empty, rounds = self.timed(lambda: None, "inner"), 3000
        self.timed(lambda: [empty() for _ in range(rounds)], "outer")()
        self._own, self._around = (self.now.spent[each] // rounds for each in ("inner", "outer"))

    def timed(self, call: Call, phase: str) -> Call:
        """Return a function that does as `call`, and counts its own time to a phase."""

        def probed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0)
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                took = clock() - start
                self.now.spent[phase] += took - self._inner.pop() - self._own
                if self._inner:
                    self._inner[-1] += took + self._around

        return probed

    @contextmanager
    def on(self, places: Sequence[tuple[Any, str, str]]) -> Iterator[None]:
        """Time functions inside, each given by its owner, its name there and its phase."""
        with ExitStack() as stack:
            for owner, name, phase in places:
                is_own, call = name in vars(owner), getattr(owner, name)
                setattr(owner, name, self.timed(call, phase))
                stack.callback(*(setattr, owner, name, call) if is_own else (delattr, owner, name))
            yield


class Replay:
    """Native kernels of a decoder that gives an engine kept states of its answers in the place of passes."""

    def __init__(self, llm: LLM, answers: Sequence[Answer], probes: Probes) -> None:
        """Raises ConfigError for a model of another backend."""
        assert isinstance(llm.model, NativeDecoder)
        self._native, self._scheduler = llm.model.native, llm.engine.scheduler
        self.answers = {tuple(each.tokens[: each.num_prompt]): each for each in answers}
        self.now_s = 0.0
        """Stands still but in passes."""
        self._rows: list[tuple[Answer, NDArray[np.int64]]] = []
        """Of the last pass: which rows of the answers they are."""
        self.forward = probes.timed(self._forward, LEFT_OUT)
        self.topk = probes.timed(self._topk, LEFT_OUT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def _forward(
        self,
        cache: object,
        segments: Sequence[Segment],
        inputs: object,
        hidden: Floats,
        aux_layers: Sequence[int],
        aux: Floats,
    ) -> None:
        """Give the states of each row that is on the way; a wrong guess gets those of the right one."""
        running = self._scheduler.running
        by_slot = {s.slot: self.answers[tuple(s.tokens[: s.num_prompt])] for s in running}
        start, self._rows = 0, []
        for segment in segments:
            answer, stop = by_slot[segment.slot], start + segment.num_rows
            positions = np.minimum(segment.positions(), len(answer.last) - 1)
            hidden[start:stop] = answer.last[positions]
            for out, states in zip(aux, answer.aux, strict=True):
                out[start:stop] = states[positions]
            start = stop
            self._rows.append((answer, positions))
        self.now_s += PASS_S

    def _topk(
        self,
        hidden: Floats,
        ids: NDArray[np.int64],
        values: Floats,
        norm: Floats | None,
        logits: Floats | None,
    ) -> None:
        """Give what was likely after each row of the pass, and logits (R, V) by which the known token comes."""
        if len(hidden) != sum(len(positions) for _, positions in self._rows):
            self._native.topk(hidden, ids, values, norm, logits)  # of the end of a prompt
            return
        start, k = 0, ids.shape[1]
        for answer, positions in self._rows:
            own = slice(start, start + len(positions))
            ids[own], values[own] = (each[positions, :k] for each in answer.top[:2])
            if norm is not None and answer.top.log_normaliser is not None:
                norm[own] = answer.top.log_normaliser[positions]
            if logits is not None:
                coming = np.array(answer.tokens)[positions + 1]
                logits[own] = FAR_BELOW
                logits[range(own.start, own.stop), coming] = FAR_ABOVE
            start = own.stop


def answered(
    llm: LLM, prompts: Sequence[TaskPrompt], params: SamplingParams, num_tokens: int
) -> list[Answer]:
    """Answer prompts of one turn, and read the answers once more for their states."""
    asked = [[{"role": "user", "content": prompt.turns[0]}] for prompt in prompts]
    outputs = llm.chat(asked, replace(params, max_tokens=num_tokens))
    features = llm.engine.proposer.drafter.features
    layers, k = sorted({*features.layers}), max(TOP_K, features.top_k)
    answers = []
    for output in outputs:
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        cache = llm.model.new_cache(1, len(tokens))
        opened = cache.open(tokens, reuse=False)
        assert opened is not None
        batch = Batch((Segment(opened[0], 0, tuple(tokens[:-1]), certain=len(tokens) - 1),))
        hidden = llm.model.forward(batch, cache, tuple(layers))
        top = llm.model.topk(hidden.last, k, log_normaliser=True)
        answers.append(Answer(len(output.prompt_token_ids), tokens, hidden.last, hidden.aux, top))
    return answers


def measure(
    llm: LLM, prompts: Sequence[TaskPrompt], sizes: Sequence[int], num_tokens: int, rounds: int
) -> Iterator[dict[str, object]]:
    """Yield a row for each kind of request and number of sequences. Raises ConfigError, ForerunError."""
    if not isinstance(llm.model, NativeDecoder):
        raise ConfigError("passes of the native kernels are replayed: leave out --device")
    if len(prompts) < max(sizes):
        raise ConfigError(f"{max(sizes)} sequences need as many prompts, got {len(prompts)}")
    probes, drafter = Probes(), llm.drafter_spec.text()
    for kind, params in KINDS.items():
        answers = answered(llm, prompts, params, num_tokens)
        for size in sizes:
            steps = list[StepTimes]()
            for _ in range(rounds):
                fresh = llm.with_drafter(drafter)  # it has seen none of the answers
                replay = Replay(fresh, answers, probes)
                with _replayed(fresh, replay, probes):
                    for first in range(0, len(answers) - size + 1, size):
                        group = answers[first : first + size]
                        steps += _answer(fresh, probes, params, group, reads=kind == "streamed")
            alike = [each for each in steps if each.is_steady and each.num_seqs == size]
            yield {"kind": kind, "num_seqs": size} | _typical(alike)


@contextmanager
def _replayed(llm: LLM, replay: Replay, probes: Probes) -> Iterator[None]:
    """Replay passes inside, and time the functions of each phase."""
    from forerun import _native

    own, model = llm.engine, llm.model
    assert isinstance(model, NativeDecoder)
    places = [
        (own, "step", "step"),
        (own, "_steps", "schedule"),
        (own.scheduler, "admit", "schedule"),
        (own.scheduler, "fit", "schedule"),
        (own.proposer, "propose", "propose"),
        (engine, "pack", "pack"),
        (model, "forward", "pack"),
        (own, "_verify", "verify"),
        (StopChecker, "push", "text"),
        (own.cache, "keep", "emit"),
        (own.cache, "_move", LEFT_OUT),
        (SequenceStep, "emit", "emit"),
        (own, "_begin_and_end", "learn"),
        (own.proposer, "observe", "learn"),
        (own.proposer.controller, "learn", "learn"),
        (_native, "grow", LEFT_OUT),
    ]
    kernels, real = model.native, own.timers.clock
    model._native, own.timers.clock = replay, lambda: replay.now_s  # type: ignore[assignment]
    try:
        with probes.on(places):
            yield
    finally:
        model._native, own.timers.clock = kernels, real


def _answer(
    llm: LLM, probes: Probes, params: SamplingParams, group: Sequence[Answer], *, reads: bool
) -> Iterator[StepTimes]:
    """Answer some prompts together; yield the times of each step. Raises ForerunError if a token differs."""
    own, step = llm.engine, probes.timed(llm.loop.step, "deliver")
    requests = [
        llm.loop.submit(
            each.tokens[: each.num_prompt],
            replace(params, max_tokens=len(each.tokens) - each.num_prompt),
        )
        for each in group
    ]
    read = probes.timed(lambda: [e.text for each in requests for e in each.unread], "deliver")
    with handled_later():  # as `Request.wait` has it around all steps
        while own.has_work:
            probes.now = times = StepTimes()
            running = [*own.scheduler.running]
            is_steady = all(run.has_begun for run in own.sequences.values())
            before = own.stats.emitted, own.timers.num_rows
            step()
            if reads:
                read()
            for request in requests:
                request.unread.clear()
            times.num_seqs, times.num_rows = len(running), own.timers.num_rows - before[1]
            times.num_tokens = own.stats.emitted - before[0]
            times.is_steady = is_steady and [*own.scheduler.running] == running
            yield times
    for request, answer in zip(requests, group, strict=True):
        if request.runs[0].seq.tokens != answer.tokens:
            raise ForerunError("an answer differs from the one that is replayed")


def _typical(steps: Sequence[StepTimes]) -> dict[str, object]:
    """Return means over the half of the steps in the middle of all by what they take, in microseconds."""
    ranked = sorted(steps, key=lambda each: each.total)
    middle = ranked[len(ranked) // 4 : -(len(ranked) // 4) or None]
    if not middle:
        raise ConfigError("no step was like another: give more tokens")
    return {
        "us": round(fmean(each.total for each in middle) / 1e3, 1),
        "phases": {p: round(fmean(each.spent[p] for each in middle) / 1e3, 1) for p in PHASES},
        "rows": round(fmean(each.num_rows for each in middle), 1),
        "tokens": round(fmean(each.num_tokens for each in middle), 2),
        "steps": len(steps),
    }


def show(document: Mapping[str, Any]) -> None:
    """Print a line a kind of request and number of sequences."""

    def phase(name: str) -> Column:
        return lambda row: f"{row['phases'][name]:.0f}"

    columns: dict[str, Column] = {
        "requests": "kind",
        "together": "num_seqs",
        "rows": ("rows", 1),
        "tokens": ("tokens", 1),
        "us a step": ("us", 0),
        **{name: phase(name) for name in PHASES},
    }
    show_table(document["rows"], columns)
