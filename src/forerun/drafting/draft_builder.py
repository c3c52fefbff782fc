"""Drafts that a model guesses level by level, as a chain or as a tree: shared by the drafters that run one.

A `DraftBuilder` holds one sequence's unfinished draft; `ModelDrafter` adds level by level. What computes the rows, a
model of its own or part of the target, is the drafter's.

A greedy request gets the model's likeliest tokens, as point masses. A sampling request gets tokens
drawn from the model's distribution under the request's own parameters, each with the row it was
really drawn from, and siblings drawn without replacement (Sequoia, arXiv 2402.12374).

M rows whose logits are needed, N nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from forerun.core import tree
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError, check_least
from forerun.core.random import Stream, uniform
from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.decoding.processors import LogitsPipeline, draw
from forerun.drafting.base import Drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderOptions:
    """How many tokens a model drafts, in which tree, and at which temperature."""

    num_draft: int = 5
    """Tokens of a chain, one pass of the draft each."""
    branch: tuple[int, ...] = ()
    """Guess a tree instead: how many children each node of a level gets, such as 2,2,1."""
    temperature: float | None = None
    """Temperature of the draft; none takes the request's own, 0 takes its likeliest tokens."""
    min_confidence: float = 0.0
    """Guess nothing below a token to which the draft gives less than this probability."""

    def __post_init__(self) -> None:
        check_least("num_draft", self.num_draft, 1)
        if any(width < 1 for width in self.branch):
            raise ConfigError(f"branch must be numbers from 1, such as 2,2,1, got {self.branch}")
        if self.temperature is not None and not 0 <= self.temperature <= 100:
            raise ConfigError(f"temperature must be from 0 to 100, got {self.temperature}")
        if not 0 <= self.min_confidence < 1:
            raise ConfigError(f"min_confidence must be in [0, 1), got {self.min_confidence}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Count the children that a node gets, level by level."""
        return self.branch or (1,) * self.num_draft

    @property
    def num_nodes(self) -> int:
        """Count the nodes of a draft at most."""
        return sum(math.prod(self.widths[: i + 1]) for i in range(len(self.widths)))

    def pipeline(self, seq: Seq) -> LogitsPipeline:
        """Make the logits processing of a sequence, at the temperature of the draft."""
        params = seq.params
        if self.temperature is not None and not params.is_greedy:
            params = replace(params, temperature=self.temperature)
        return LogitsPipeline(params, seq.tokens[: seq.num_prompt], seed=seq.seed)


@dataclass(slots=True)
class DraftBuilder:
    """An unfinished draft: `num_pending` tokens the cache lacks, then the nodes below the last.

    Rows are counted from `base`, the committed rows of the slot. `frontier` holds the rows whose
    children are chosen next, `num_fed` counts the rows that have been computed.
    """

    seq: Seq
    slot: int
    base: int
    tokens: list[int]
    room: int
    num_fed: int = 0
    parents: list[int] = field(init=False)
    num_pending: int = field(init=False)
    frontier: list[int] = field(init=False)
    probs: list[Tensor | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.num_pending = len(self.tokens)
        self.parents = [*tree.chain(self.num_pending)]
        self.frontier = [self.num_pending - 1]

    def segment(self) -> Segment:
        """Return the rows that have not been computed yet."""
        return Segment(self.slot, self.base, tuple(self.tokens), tuple(self.parents), self.num_fed)

    def generated(self, row: int) -> list[int]:
        """Return the tokens the sequence would have emitted at a row."""
        path = tree.path_to(row, self.parents)
        return self.seq.generated + [self.tokens[r] for r in path if r >= self.num_pending]

    def add(self, parent: int, child: Child) -> None:
        """Hang a node below a row."""
        self.tokens.append(child.token)
        self.parents.append(parent)
        self.probs.append(child.probs)
        self.room -= 1

    def draft(self) -> Draft:
        """Return the nodes, counted from the first."""
        first = self.num_pending
        parents = tuple(max(-1, parent - first) for parent in self.parents[first:])
        is_drawn = any(row is not None for row in self.probs)
        return Draft(tuple(self.tokens[first:]), parents, tuple(self.probs) if is_drawn else None)


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits (n,) of the tokens (n,) that a model may guess below a row; `tokens` None: of the whole vocabulary."""

    logits: Tensor
    tokens: Tensor | None = None
    vocab_size: int = 0

    def whole(self) -> Tensor:
        """Spread the logits to (V,): minus infinity, so no probability, for every other token."""
        if self.tokens is None:
            return self.logits
        row = self.logits.new_full((self.vocab_size,), -math.inf)
        row[self.tokens] = self.logits
        return row


@dataclass(frozen=True, slots=True)
class Child:
    """A token to hang below a row, the distribution it was drawn from, and its probability."""

    token: int
    probs: Tensor | None
    confidence: float


class ModelDrafter(Drafter):
    """Drafts with a model, level by level: `_start` prepares a sequence's draft, `_feed` runs the model."""

    def __init__(self, options: BuilderOptions) -> None:
        self.options, self.max_nodes = options, options.num_nodes

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence; empty where the context has no room."""
        started = [self._start(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]
        builders = [builder for builder in started if builder is not None]
        pipelines = {builder.seq.id: self.options.pipeline(builder.seq) for builder in builders}
        for width in self.options.widths:
            if not builders:
                break
            scores = iter(self._feed(builders))
            for builder in builders:
                _add_level(builder, pipelines[builder.seq.id], scores, width, self.options)
            builders = [builder for builder in builders if builder.frontier]
        return [EMPTY_DRAFT if builder is None else builder.draft() for builder in started]

    def _start(self, seq: Seq, budget: int) -> DraftBuilder | None:
        """Start an empty draft of a sequence; None where nothing can be drafted."""
        raise NotImplementedError

    def _feed(self, builders: Sequence[DraftBuilder]) -> Sequence[Scores]:
        """Compute the rows that have not been (`new_rows`); return the scores of the builders' frontiers, M rows."""
        raise NotImplementedError


def new_rows(builders: Sequence[DraftBuilder]) -> tuple[Batch, list[int]]:
    """Return the rows that have not been computed, as one pass, and which of its rows are frontiers."""
    batch, wanted = Batch(tuple(builder.segment() for builder in builders)), []
    for builder, span in zip(builders, batch.spans(), strict=True):
        wanted += [span.start + row - builder.num_fed for row in builder.frontier]
        builder.num_fed = len(builder.tokens)
    return batch, wanted


def _add_level(
    builder: DraftBuilder,
    pipeline: LogitsPipeline,
    scores: Iterator[Scores],
    width: int,
    options: BuilderOptions,
) -> None:
    """Give each row of the frontier up to `width` children.

    A child without confidence is kept, as dropping what was drawn would bias the outcome, but
    has no children.
    """
    choose = _likeliest if pipeline.params.is_greedy else _drawn
    frontier = []
    for row in builder.frontier:
        for child in choose(builder, row, next(scores), pipeline, min(width, builder.room)):
            builder.add(row, child)
            if child.confidence >= options.min_confidence:
                frontier.append(len(builder.tokens) - 1)
    builder.frontier = frontier if builder.room else []


def _likeliest(
    builder: DraftBuilder, row: int, scores: Scores, pipeline: LogitsPipeline, width: int
) -> list[Child]:
    """Choose the draft's best tokens below a row, as point masses."""
    if pipeline.changes_logits:
        scores = Scores(pipeline.adjusted(scores.whole(), builder.generated(row)))
    best = scores.logits.softmax(dim=-1).topk(min(width, len(scores.logits)))
    tokens = best.indices if scores.tokens is None else scores.tokens[best.indices.cpu()]
    return [
        Child(token, None, confidence)
        for token, confidence in zip(tokens.tolist(), best.values.tolist(), strict=True)
        if not math.isnan(confidence)  # nothing that may be guessed is allowed
    ]


def _drawn(
    builder: DraftBuilder, row: int, scores: Scores, pipeline: LogitsPipeline, width: int
) -> list[Child]:
    """Draw tokens without replacement, each with its distribution given the ones before it."""
    generated = builder.generated(row)
    position = builder.seq.num_prompt + len(generated)
    logits = scores.whole()
    may_ban_all = scores.tokens is not None and pipeline.changes_logits
    if may_ban_all and pipeline.adjusted(logits, generated).max() == -math.inf:
        return []
    probs = pipeline.probs(logits, generated)
    children: list[Child] = []
    while len(children) < width and probs.sum() > 0:
        # Numbered by the node: nodes of one level share a position, but no random number.
        node = len(builder.probs) + len(children)
        token = draw(probs.numpy(), uniform(builder.seq.seed, Stream.DRAFT, position, node))
        children.append(Child(token, probs, float(probs[token])))
        probs = probs.clone()
        probs[token] = 0
        probs /= probs.sum().clamp(min=torch.finfo(probs.dtype).tiny)
    return children
