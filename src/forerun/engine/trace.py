"""Where the time of a run goes: every phase of every step as a span, for a table or a trace viewer.

`Engine.start_trace` begins it. An engine without a trace only adds up seconds (`stats.Timers`).
Logits processing (`process`) happens inside `verify`; its time is not counted there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.engine.batch import Pass
from forerun.engine.sequence import StepResult
from forerun.engine.stats import PHASES, Timers


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of one step, in seconds of the trace's clock."""

    phase: str
    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        """Duration of the span."""
        return self.stop_s - self.start_s


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step: its spans, and `counts`: the rows of its pass, and the nodes granted, drafted and accepted."""

    spans: tuple[Span, ...]
    stop_s: float
    reads_prompt: bool
    counts: dict[str, int]

    @property
    def start_s(self) -> float:
        """When its first phase began."""
        return self.spans[0].start_s

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase, without those of a phase inside it; `other` is what no phase covers."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for span in self.spans:
            seconds[span.phase] += span.seconds
        seconds["verify"] -= seconds["process"]
        return seconds | {"other": self.stop_s - self.start_s - sum(seconds.values())}


@dataclass(slots=True)
class Trace(Timers):
    """Timers that remember every span, step by step."""

    steps: list[TraceStep] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)

    def record(self, phase: str, start_s: float, stop_s: float) -> None:
        """Add the time of a block, and remember the block."""
        Timers.record(self, phase, start_s, stop_s)
        self._spans.append(Span(phase, start_s, stop_s))

    def end_step(self, work: Pass, results: Sequence[StepResult], granted: int) -> None:
        """Record a finished step: `granted` is what its sequences might have drafted together."""
        spans = tuple(sorted(self._spans, key=lambda span: span.start_s))
        self._spans = []
        counts = {
            "rows": work.batch.num_rows,
            "budget": granted,
            "drafted": sum(len(rows.draft) for rows in work.seq_rows),
            "accepted": sum(len(result.outcome.path) for result in results),
            "emitted": sum(len(result.outcome.emitted) for result in results),
        }
        self.steps.append(TraceStep(spans, self.clock(), not work.is_decoding, counts))

    def profile(self) -> dict[str, dict[str, float]]:
        """Return milliseconds by phase, their `total` and the number of `steps`, apart for steps that read a prompt."""
        return {
            "prompt": _summed([step for step in self.steps if step.reads_prompt]),
            "decode": _summed([step for step in self.steps if not step.reads_prompt]),
        }

    def chrome(self) -> str:
        """Return the trace as JSON for chrome://tracing and Perfetto: a span a step and in it a span a phase."""
        begin_s = self.steps[0].start_s if self.steps else 0.0
        events: list[dict[str, object]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "forerun"}}
        ]
        for step in self.steps:
            name = "prompt" if step.reads_prompt else "step"
            for span in (Span(name, step.start_s, step.stop_s), *step.spans):
                start_us = round((span.start_s - begin_s) * 1e6, 3)
                place = {"ph": "X", "pid": 1, "tid": 1, "ts": start_us}
                place["dur"] = round(span.seconds * 1e6, 3)
                events.append({"name": span.phase, **place, "args": step.counts})
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _summed(steps: Sequence[TraceStep]) -> dict[str, float]:
    times = [step.seconds() for step in steps]
    sums = {phase: sum(seconds[phase] for seconds in times) for phase in (*PHASES, "other")}
    in_ms = {phase: round(seconds * 1e3, 3) for phase, seconds in sums.items()}
    return {"steps": len(steps), "total": round(sum(sums.values()) * 1e3, 3), **in_ms}
