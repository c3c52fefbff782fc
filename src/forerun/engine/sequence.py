"""What the engine keeps of a sequence while it lives, and the one record of it in a step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.types import (
    EMPTY_DRAFT,
    Draft,
    Event,
    Outcome,
    Seq,
    TextPiece,
    TokenLogprob,
)
from forerun.decoding.grammar import GrammarState, limit
from forerun.decoding.processors import LogitsPipeline, logprobs
from forerun.decoding.stops import StopChecker
from forerun.drafters.base.predicted import PredictedText
from forerun.engine.stats import SpecStats
from forerun.model.model import Hidden, Model

SLOW_MASKS_S = 0.01
"""Masks of a step that take as long keep others waiting: there are none for the rows of a draft, and then a rest."""
SCORED_ROWS = 32
"""Prompt tokens whose logits are held at once."""


@dataclass(slots=True)
class SequenceState:
    """A sequence with its text, counts and clocks."""

    seq: Seq
    stops: StopChecker
    pipeline: LogitsPipeline
    prediction: PredictedText | None = None
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
    has_slow_masks: bool = False
    """The masks of its last step were slow."""
    rests_until_s: float = 0.0
    """While others run it sits out as long as its slow masks took."""
    needs_only_argmax: bool = field(init=False)
    """Whether it needs only the likeliest token of each row."""
    needs_only_draw: bool = field(init=False)
    """Whether it needs only a token of each row, drawn from all."""

    def __post_init__(self) -> None:
        wants_scores = self.seq.params.logprobs is not None
        self.needs_only_argmax = self.pipeline.needs_only_argmax and not wants_scores
        self.needs_only_draw = self.pipeline.needs_only_draw and not wants_scores

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request to the first token; None before it."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def grammar(self) -> GrammarState | None:
        """The grammar's state after the committed tokens, if there is a grammar."""
        pipeline = self.pipeline  # without a grammar no text is read
        return pipeline.grammar_after(self.seq.generated) if pipeline.has_grammar else None

    def limit(self, draft: Draft) -> Draft:
        """Keep the nodes of a draft that can be part of the output; its last token is the target's own."""
        if len(draft.tokens) < self.stops.tokens_left and not self.pipeline.has_grammar:
            return draft
        return limit(draft, self.stops.tokens_left - 1, self.grammar)

    def grammar_is_ready(self, timeout_s: float = 0) -> bool:
        """Tell whether the first token can be chosen without waiting for a grammar, after at most so many seconds."""
        compiling = self.pipeline.compiling
        return compiling is None or compiling.is_ready(timeout_s)

    def _score_prompt(self, base: int, states: Floats, model: Model) -> None:
        """Score prompt tokens, from the hidden states (R, D) of those from position `base` on."""
        num_top = self.seq.params.prompt_logprobs or 0
        first = max(base, len(self.prompt_logprobs))  # read again if it was preempted
        stop = min(base + len(states), self.seq.num_prompt - 1)
        for start in range(first, stop, SCORED_ROWS):
            rows = states[start - base : min(start + SCORED_ROWS, stop) - base]
            for position, row in enumerate(model.head(rows), start + 1):
                token = self.seq.tokens[position]
                self.prompt_logprobs.append(logprobs(row, token, num_top))

    def _pool(self, base: int, states: Floats) -> None:
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

    def read_prompt(
        self,
        base: int,
        hidden: Hidden,
        rows: slice,
        features: Floats | None,
        model: Model,
        *,
        last_row: bool,
    ) -> None:
        """Keep what is wanted of the states of prompt tokens from position `base` on, some rows of a pass.

        `features` (R, F) are what the drafter asked to see: with `last_row` of the last token alone.
        """
        if features is not None and last_row:
            self.prompt_features = [features[-1:].copy()]
        elif features is not None:
            self.prompt_features.append(features)
        if self.seq.params.prompt_logprobs is not None:
            self._score_prompt(base, hidden.last[rows], model)
        if self.seq.params.pooling is not None:
            self._pool(base, hidden.last[rows])


@dataclass(slots=True)
class SequenceStep:
    """One sequence in one step: what its pass computes, a draft below the tokens that its cache lacks, and the result.

    A part of a prompt that does not reach its end has no logits and no outcome.
    """

    seq: Seq
    """The sequence, as drafters see it."""
    state: SequenceState
    tokens: Sequence[int]
    """Committed tokens whose rows are computed."""
    base: int
    """Rows that its cache has."""
    room: int = 0
    """Nodes that a draft may have at most: by the options, the request and the end of the context."""
    budget: int = 0
    """Nodes that the controller lets the drafter propose."""
    num_unread: int | None = None
    """Tokens that the drafter's models have to read before they are asked; None: it has none."""
    wants_models: bool = False
    """The controller lets the drafter's models take part."""
    model_cost: float = 0.0
    """What a step of them costs, in tokens."""
    asks_models: bool = False
    """They do: they have read all that they need."""
    num_model_steps: int = 0
    """Steps that they took in the draft."""
    num_model_read: int = 0
    """Tokens that they read before it, of all sequences; the first one has it."""
    model_load_s: float = 0.0
    """Seconds in which they were loaded again before it; the first sequence has it."""
    proposed: Draft = EMPTY_DRAFT
    """What the drafter proposed of it, before the controller's cut: the nodes that can be part of the output."""
    draft: Draft = EMPTY_DRAFT
    """What the pass verifies."""
    num_drafted: int = 0
    """Nodes of the draft that are the drafter's own: the first ones."""
    rows: range = range(0)
    """Its rows in the pass."""
    logit_rows: range = range(0)
    """Those of its rows that need logits: the last token's and the draft's."""
    outcome: Outcome = field(default=Outcome((), ()))
    """What became final, cut where the sequence ends."""
    pieces: tuple[TextPiece, ...] = ()
    """The text of it."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Log-probabilities of the emitted tokens, if the request asked for them."""
    error: Exception | None = None
    """What ends this sequence and no other."""

    def fail(self, error: Exception) -> None:
        """End this sequence and no other; it is told its first error."""
        self.error = self.error or error

    @property
    def needs_only_tokens(self) -> bool:
        """Whether a model that draws can say all that is asked of its rows."""
        return self.state.needs_only_argmax or self.state.needs_only_draw

    def noises(self) -> list[tuple[int, float] | None]:
        """Return with what each of its rows' tokens is drawn, as `model.model.Noises`."""
        if self.state.needs_only_argmax:
            return [None] * len(self.logit_rows)
        seq, factor = self.seq, self.state.pipeline.factor
        below = [0, *(1 + depth for depth in tree.depths(self.draft.parents))]
        return [
            (seq.noise.key(len(seq.tokens) + depth), factor)
            for depth in below[: len(self.logit_rows)]
        ]

    def finish(self, outcome: Outcome) -> None:
        """Show the emitted tokens to the stop checker one by one, and keep the outcome up to the sequence's end."""
        stops, pieces = self.state.stops, []
        for count, token in enumerate(outcome.emitted, 1):
            if text := stops.push(token):
                pieces.append(TextPiece(text, from_draft=count <= len(outcome.path)))
            if stops.finish_reason is not None:
                break
        if count < len(outcome.emitted):
            emitted, path = outcome.emitted[:count], outcome.path[:count]
            outcome = outcome._replace(emitted=emitted, path=path)
        num_top = self.seq.params.logprobs
        if num_top is not None and outcome.logits is not None:
            rows = outcome.logits[[0, *(1 + node for node in outcome.path)]]
            pairs = zip(rows, outcome.emitted, strict=False)
            self.logprobs = tuple(logprobs(row, token, num_top) for row, token in pairs)
        self.outcome, self.pieces = outcome, tuple(pieces)

    def drop_logits(self) -> None:
        """Keep only the likeliest tokens of the rows."""
        if (logits := self.outcome.logits) is not None:
            best = tuple(logits.argmax(-1).tolist())
            self.outcome = self.outcome._replace(logits=None, best=best)

    def emit(self) -> Event:
        """Append the outcome to the sequence, and return the event with what is new."""
        state, seq = self.state, self.seq
        if state.first_token_s is None:
            state.first_token_s = time.perf_counter()
        emitted, scored = self.outcome.emitted, self.logprobs
        if not state.stops.num_tokens:
            emitted, scored = (), None
        seq.tokens += emitted
        seq.finish_reason = state.stops.finish_reason
        state.logprobs += scored or ()
        state.text += "".join([piece.text for piece in self.pieces])
        return Event(seq.id, emitted, self.pieces, scored, seq.finish_reason)


def pack(steps: Sequence[SequenceStep]) -> tuple[list[SequenceStep], Batch]:
    """Pack the rows of several sequences into one pass, in order; a sequence that fails there is left out."""
    packed, segments, row = [], [], 0
    for step in steps:
        seq, draft, n = step.seq, step.draft, len(step.tokens)
        try:
            parents = (*range(-1, n - 1), *[n + parent for parent in draft.parents])
            segment = Segment(
                seq.slot, step.base, (*step.tokens, *draft.tokens), parents, certain=n
            )
        except Exception as error:
            step.fail(error)
            continue
        stop = row + len(segment.tokens)
        is_read = step.base + n == len(seq.tokens)
        step.rows, step.logit_rows = range(row, stop), range(row + n - 1 if is_read else stop, stop)
        row = stop
        segments.append(segment)
        packed.append(step)
    return packed, Batch(tuple(segments))
