"""Drafts that a model guesses level by level, as a chain or as a tree: shared by the drafters that run one.

A `Growth` is one sequence's draft while it grows; `grow` is the loop. What runs the rows, a model of its
own or part of the target, is the drafter's.

A greedy request gets the model's likeliest tokens, as point masses. A sampling request gets tokens
drawn from the model's distribution under the request's own parameters, each with the row it was
really drawn from, and siblings drawn without replacement (Sequoia, arXiv 2402.12374).

M rows whose logits are needed, N nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from forerun.core import tree
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.core.random import Stream, uniform
from forerun.core.types import Draft, Seq
from forerun.decoding.processors import LogitsPipeline, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthOptions:
    """How much is guessed, and how."""

    num_draft: int = 5
    """Tokens of a chain, one pass of the draft each."""
    branch: tuple[int, ...] = ()
    """Guess a tree instead: how many children each node of a level gets, such as 2,2,1."""
    temperature: float | None = None
    """Temperature of the draft; none takes the request's own, 0 takes its likeliest tokens."""
    min_confidence: float = 0.0
    """Guess nothing below a token to which the draft gives less than this probability."""

    def __post_init__(self) -> None:
        if self.num_draft < 1:
            raise ConfigError(f"num_draft must be at least 1, got {self.num_draft}")
        if any(width < 1 for width in self.branch):
            raise ConfigError(f"branch must be numbers from 1, such as 2,2,1, got {self.branch}")
        if self.temperature is not None and not 0 <= self.temperature <= 100:
            raise ConfigError(f"temperature must be from 0 to 100, got {self.temperature}")
        if not 0 <= self.min_confidence < 1:
            raise ConfigError(f"min_confidence must be in [0, 1), got {self.min_confidence}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Children a node gets, level by level."""
        return self.branch or (1,) * self.num_draft

    @property
    def num_nodes(self) -> int:
        """Nodes of a draft, at most."""
        return sum(math.prod(self.widths[: i + 1]) for i in range(len(self.widths)))

    def pipeline(self, seq: Seq) -> LogitsPipeline:
        """The logits processing of a sequence, at the temperature of the draft."""
        params = seq.params
        if self.temperature is not None and not params.is_greedy:
            params = replace(params, temperature=self.temperature)
        return LogitsPipeline(params, seq.tokens[: seq.num_prompt], seed=seq.seed)


@dataclass(slots=True)
class Growth:
    """A draft while it grows: `num_pending` tokens the cache lacks, then the nodes below the last.

    Rows are counted from `base`, the committed rows of the slot. `frontier` holds the rows whose
    children are chosen next, `num_fed` counts the rows that have been computed.
    """

    seq: Seq
    slot: int
    base: int
    tokens: list[int]
    parents: list[int]
    room: int
    num_fed: int = 0
    num_pending: int = field(init=False)
    frontier: list[int] = field(init=False)
    probs: list[Tensor | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.num_pending = len(self.tokens)
        self.frontier = [self.num_pending - 1]

    def segment(self) -> Segment:
        """The rows that have not been computed yet."""
        return Segment(self.slot, self.base, tuple(self.tokens), tuple(self.parents), self.num_fed)

    def generated(self, row: int) -> list[int]:
        """What the sequence would have emitted at a row."""
        path = tree.path_to(row, self.parents)
        return self.seq.generated + [self.tokens[r] for r in path if r >= self.num_pending]

    def add(self, parent: int, child: Child) -> None:
        """Hang a node below a row."""
        self.tokens.append(child.token)
        self.parents.append(parent)
        self.probs.append(child.probs)
        self.room -= 1

    def draft(self) -> Draft:
        """The nodes, counted from the first."""
        first = self.num_pending
        parents = tuple(max(-1, parent - first) for parent in self.parents[first:])
        is_drawn = any(row is not None for row in self.probs)
        return Draft(tuple(self.tokens[first:]), parents, tuple(self.probs) if is_drawn else None)


@dataclass(frozen=True, slots=True)
class Child:
    """A token to hang below a row, the distribution it was drawn from, and its probability."""

    token: int
    probs: Tensor | None
    confidence: float


def grow(
    growths: Sequence[Growth],
    options: GrowthOptions,
    feed: Callable[[Sequence[Growth]], Tensor],
) -> None:
    """Grow drafts until none has room; `feed` computes their new rows and returns logits (M, V) of their frontiers."""
    pipelines = {growth.seq.id: options.pipeline(growth.seq) for growth in growths}
    for width in options.widths:
        if not growths:
            return
        logits = iter(feed(growths).unbind())
        for growth in growths:
            _add_level(growth, pipelines[growth.seq.id], logits, width, options)
        growths = [growth for growth in growths if growth.frontier]


def new_rows(growths: Sequence[Growth]) -> tuple[Batch, list[int]]:
    """The rows that have not been computed, as one pass, and which of its rows are frontiers."""
    batch, wanted = Batch(tuple(growth.segment() for growth in growths)), []
    for growth, span in zip(growths, batch.spans(), strict=True):
        wanted += [span.start + row - growth.num_fed for row in growth.frontier]
        growth.num_fed = len(growth.tokens)
    return batch, wanted


def _add_level(
    growth: Growth,
    pipeline: LogitsPipeline,
    logits: Iterator[Tensor],
    width: int,
    options: GrowthOptions,
) -> None:
    """Give each row of the frontier up to `width` children.

    A child without confidence is kept, as dropping what was drawn would bias the outcome, but
    has no children.
    """
    choose = _likeliest if pipeline.params.is_greedy else _drawn
    frontier = []
    for row in growth.frontier:
        for child in choose(growth, row, next(logits), pipeline, min(width, growth.room)):
            growth.add(row, child)
            if child.confidence >= options.min_confidence:
                frontier.append(len(growth.tokens) - 1)
    growth.frontier = frontier if growth.room else []


def _likeliest(
    growth: Growth, row: int, logits: Tensor, pipeline: LogitsPipeline, width: int
) -> list[Child]:
    """The draft's best tokens below a row: chosen, so point masses."""
    if pipeline.changes_logits:
        logits = pipeline.adjusted(logits, growth.generated(row))
    best = logits.softmax(dim=-1).topk(min(width, len(logits)))
    return [
        Child(token, None, confidence)
        for token, confidence in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _drawn(
    growth: Growth, row: int, logits: Tensor, pipeline: LogitsPipeline, width: int
) -> list[Child]:
    """Tokens drawn without replacement, each with its distribution given the ones before it."""
    generated = growth.generated(row)
    position = growth.seq.num_prompt + len(generated)
    probs = pipeline.probs(logits, generated)
    children: list[Child] = []
    while len(children) < width and probs.sum() > 0:
        # Numbered by the node: nodes of one level share a position, but no random number.
        node = len(growth.probs) + len(children)
        token = draw(probs, uniform(growth.seq.seed, Stream.DRAFT, position, node))
        children.append(Child(token, probs, float(probs[token])))
        probs = probs.clone()
        probs[token] = 0
        probs /= probs.sum().clamp(min=torch.finfo(probs.dtype).tiny)
    return children
