"""What the engine keeps of one sequence, and what one pass decided for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from forerun.core.arrays import Floats
from forerun.core.types import Event, FinishReason, Outcome, Seq, TextPiece, TokenLogprob
from forerun.decoding.grammar import GrammarState
from forerun.decoding.processors import LogitsPipeline, logprobs
from forerun.decoding.stops import StopChecker
from forerun.drafting.predicted import Prediction
from forerun.engine.batch import SequenceRows
from forerun.engine.stats import SpecStats

SCORED_ROWS = 32
"""Prompt tokens whose logits are held at once."""


@dataclass(slots=True)
class SequenceState:
    """A sequence with its text, counts and clocks."""

    seq: Seq
    stops: StopChecker
    pipeline: LogitsPipeline
    prediction: Prediction | None = None
    """What the user expects the output to be, as a draft."""
    stats: SpecStats = field(default_factory=SpecStats)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of the prompt's tokens after the first one."""
    pooled: list[NDArray[np.floating]] = field(default_factory=list)
    """States of the prompt, as `pooling` wants them, and of how many tokens they are."""
    num_pooled: int = 0
    has_begun: bool = False
    """The prompt is in the cache and the drafter knows the sequence."""
    prompt_features: list[Floats] = field(default_factory=list)
    start_s: float = field(default_factory=time.perf_counter)
    first_token_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request to the first token; None before it."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def grammar(self) -> GrammarState | None:
        """Return the grammar's state after the committed tokens; None without a grammar, for which no text is read."""
        pipeline = self.pipeline
        return pipeline.grammar_after(self.seq.generated) if pipeline.has_grammar else None

    @property
    def needs_only_argmax(self) -> bool:
        """Whether it needs only the likeliest token of each row."""
        return self.pipeline.needs_only_argmax and self.seq.params.logprobs is None

    @property
    def scores_prompt(self) -> bool:
        """True while the prompt is read, if the log-probabilities of its tokens were asked for."""
        return self.seq.params.prompt_logprobs is not None and not self.has_begun

    def score_prompt(self, base: int, states: Floats, head: Callable[[Floats], Floats]) -> None:
        """Score prompt tokens, from the hidden states (R, D) of those from position `base` on."""
        num_top = self.seq.params.prompt_logprobs or 0
        first = max(base, len(self.prompt_logprobs))  # read again if it was preempted
        stop = min(base + len(states), self.seq.num_prompt - 1)
        for start in range(first, stop, SCORED_ROWS):
            rows = states[start - base : min(start + SCORED_ROWS, stop) - base]
            for position, row in enumerate(head(rows), start + 1):
                token = self.seq.tokens[position]
                self.prompt_logprobs.append(logprobs(row, token, num_top))

    def pool(self, base: int, states: Floats) -> None:
        """Keep what is wanted of the states (R, D) of prompt tokens from position `base` on."""
        first, stop = (max(n - base, 0) for n in (self.num_pooled, self.seq.num_prompt))
        rows = states[first:stop]
        if not len(rows):  # read before, and again with what was generated after it was preempted
            return
        self.num_pooled += len(rows)
        match self.seq.params.pooling:
            case "last":
                self.pooled = [rows[-1:].copy()]
            case "mean":
                total = rows.sum(0, dtype=np.float64, keepdims=True)
                self.pooled = [self.pooled[0] + total] if self.pooled else [total]
            case _:
                self.pooled.append(rows.copy())

    def states(self) -> Floats:
        """Pool the prompt's states: (1, D), or with `none` a row for every token."""
        rows = np.concatenate(self.pooled)
        if self.seq.params.pooling == "mean":
            rows = rows / self.num_pooled
        return rows.astype(np.float32)

    def take(self, result: StepResult) -> Event:
        """Append the result to the sequence, and return the event with what is new."""
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter()
        self.seq.tokens += result.outcome.emitted
        self.seq.finish_reason = result.finish_reason
        found = result.logprobs
        self.logprobs += found or ()
        event = Event(
            self.seq.id, result.outcome.emitted, result.pieces, found, result.finish_reason
        )
        self.text += event.text
        return event


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one pass made final for one sequence: the outcome, cut where the sequence ends, and its text."""

    state: SequenceState
    rows: SequenceRows
    outcome: Outcome
    pieces: tuple[TextPiece, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None
    """Log-probabilities of the emitted tokens, if the request asked for them."""

    @classmethod
    def of(cls, state: SequenceState, rows: SequenceRows, outcome: Outcome) -> StepResult:
        """Show the emitted tokens to the stop checker one by one, and cut the outcome at the end."""
        pieces = []
        for count, token in enumerate(outcome.emitted, 1):
            if text := state.stops.push(token):
                pieces.append(TextPiece(text, from_draft=count <= len(outcome.path)))
            if state.stops.finish_reason is not None:
                break
        if count < len(outcome.emitted):
            emitted, path = outcome.emitted[:count], outcome.path[:count]
            outcome = replace(outcome, emitted=emitted, path=path)
        found = _logprobs(outcome, state.seq.params.logprobs)
        return cls(state, rows, outcome, tuple(pieces), state.stops.finish_reason, found)

    def without_logits(self) -> StepResult:
        """Return the same where only the likeliest tokens of the rows are kept."""
        if (logits := self.outcome.logits) is None:
            return self
        best = tuple(logits.argmax(-1).tolist())
        return replace(self, outcome=replace(self.outcome, logits=None, best=best))


def _logprobs(outcome: Outcome, num_top: int | None) -> tuple[TokenLogprob, ...] | None:
    if num_top is None or outcome.logits is None:
        return None
    rows = [0, *(1 + node for node in outcome.path)]
    return tuple(
        logprobs(outcome.logits[row], token, num_top)
        for row, token in zip(rows, outcome.emitted, strict=False)
    )
