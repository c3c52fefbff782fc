"""Drafts that a model guesses level by level, as a chain or as a tree: shared by the drafters that run one.

A `DraftBuilder` holds one sequence's unfinished draft; `ModelDrafter` adds level by level. What computes the rows, a
model of its own or part of the target, is the drafter's.

A greedy request gets the model's likeliest tokens. A sampling request gets those of the largest scores: the model's
logits under the request's own parameters, and the noise that the target's will meet (arXiv 2408.07978).

M rows whose logits are needed, N nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from forerun.core import tree
from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError, check_least
from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.decoding.processors import LogitsPipeline
from forerun.drafting.base import Drafter
from forerun.drafting.best_first import NUM_NEXT, largest, softmax
from forerun.drafting.tree_noise import TreeNoise, noise_below


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderOptions:
    """How many tokens a model drafts, in which tree, and at which temperature."""

    num_draft: int = 5
    """Tokens of a chain, one pass of the draft each."""
    branch: tuple[int, ...] = ()
    """Guess a tree instead: how many children each node of a level gets, such as 2,2,1."""
    min_confidence: float = 0.0
    """Guess nothing below a token to which the draft gives less than this probability."""

    def __post_init__(self) -> None:
        check_least("num_draft", self.num_draft, 1)
        if any(width < 1 for width in self.branch):
            raise ConfigError(f"branch must be numbers from 1, such as 2,2,1, got {self.branch}")
        if not 0 <= self.min_confidence < 1:
            message = f"min_confidence must be in [0, 1), got {self.min_confidence}"
            raise ConfigError(message, option="min_confidence")

    @property
    def widths(self) -> tuple[int, ...]:
        """Count the children that a node gets, level by level."""
        return self.branch or (1,) * self.num_draft

    @property
    def num_nodes(self) -> int:
        """Count the nodes of a draft at most."""
        return sum(math.prod(self.widths[: i + 1]) for i in range(len(self.widths)))


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
    num_certain: int = 0
    """Pending tokens whose rows are kept whatever comes: a recurrent state may run ahead to them."""
    num_fed: int = 0
    parents: list[int] = field(init=False)
    confidence: list[float] = field(init=False, default_factory=list)
    """Of each node."""
    num_pending: int = field(init=False)
    pipeline: LogitsPipeline = field(init=False)
    noise: TreeNoise | None = field(init=False)
    frontier: list[int] = field(init=False)

    def __post_init__(self) -> None:
        seq, self.num_pending = self.seq, len(self.tokens)
        prompt = seq.tokens[: seq.num_prompt]
        self.pipeline, self.noise = LogitsPipeline(seq.params, prompt), noise_below(seq)
        self.parents = [*tree.chain(self.num_pending)]
        self.frontier = [self.num_pending - 1]

    def segment(self) -> Segment:
        """Return the rows that have not been computed yet."""
        return Segment(
            self.slot,
            self.base,
            tuple(self.tokens),
            tuple(self.parents),
            self.num_fed,
            certain=self.num_certain,
        )

    def generated(self, row: int) -> list[int]:
        """Return the tokens the sequence would have emitted at a row."""
        path = tree.path_to(row, self.parents)
        return self.seq.generated + [self.tokens[r] for r in path if r >= self.num_pending]

    def add(self, parent: int, token: int, confidence: float) -> None:
        """Hang a node below a row, which the model takes to be right with that probability."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidence.append(min(confidence, 1.0))  # a sum of rounded numbers may exceed it
        self.room -= 1

    def draft(self) -> Draft:
        """Return the nodes, counted from the first."""
        first = self.num_pending
        parents = tuple(max(-1, parent - first) for parent in self.parents[first:])
        return Draft(tuple(self.tokens[first:]), parents, tuple(self.confidence))


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits (n,) of the tokens (n,) that a model may guess below a row; `tokens` None: of the whole vocabulary."""

    logits: Floats
    tokens: Ids | None = None
    vocab_size: int = 0

    def whole(self) -> Floats:
        """Spread the logits to (V,): minus infinity, so no probability, for every other token."""
        if self.tokens is None:
            return self.logits
        row = np.full(self.vocab_size, -np.inf, np.float32)
        row[self.tokens] = self.logits
        return row


class ModelDrafter(Drafter):
    """Drafts with a model, level by level: `_start` prepares a sequence's draft, `_feed` runs the model."""

    def __init__(self, options: BuilderOptions) -> None:
        self.options, self.max_nodes = options, options.num_nodes

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence; empty where the context has no room."""
        started = [self._start(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]
        builders = [builder for builder in started if builder is not None]
        for width in self.options.widths:
            if not builders:
                break
            scores = iter(self._feed(builders))
            for builder in builders:
                _add_level(builder, scores, width, self.options.min_confidence)
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
    builder: DraftBuilder, scores: Iterator[Scores], width: int, min_confidence: float
) -> None:
    """Give each row of the frontier up to `width` children; below those of less confidence nothing is guessed."""
    frontier = []
    for row in builder.frontier:
        for token, confidence in _best(builder, row, next(scores), min(width, builder.room)):
            builder.add(row, token, confidence)
            if confidence >= min_confidence:
                frontier.append(len(builder.tokens) - 1)
    builder.frontier = frontier if builder.room else []


def _best(builder: DraftBuilder, row: int, scores: Scores, width: int) -> list[tuple[int, float]]:
    """Choose the best tokens below a row, each with its chance to be the target's choice."""
    pipeline, tokens, logits = builder.pipeline, scores.tokens, scores.logits
    generated = builder.generated(row)
    if pipeline.changes_logits:
        tokens, logits = None, pipeline.adjusted(scores.whole(), generated)
    if builder.noise is None:
        best, probs = largest(logits, width), softmax(logits)
        found = best if tokens is None else tokens[best]
        ranked = [*zip(found.tolist(), probs[best].tolist(), strict=True)]
    else:
        depth = len(generated) - len(builder.seq.generated)
        ranked = [*islice(_by_score(builder.noise, depth, logits, tokens), width)]
    return [each for each in ranked if not math.isnan(each[1])]  # NaN: nothing may be guessed


def _by_score(
    noise: TreeNoise, depth: int, logits: Floats, tokens: Ids | None
) -> Iterator[tuple[int, float]]:
    """Yield the tokens (n,) of the largest scores that the filters leave, with their chances."""
    law = softmax(logits / np.float32(noise.temperature))
    best = noise.largest(depth, logits, tokens, NUM_NEXT)
    if len(best) == 0:
        return  # nothing may be guessed
    probs = dict(zip((best if tokens is None else tokens[best]).tolist(), law[best].tolist()))
    seen = TreeNoise(noise.noise, noise.position).see(depth, probs)
    for token, p in probs.items():
        if _is_left(noise, law, p):
            yield token, seen[token]


def _is_left(noise: TreeNoise, law: Floats, p: float) -> bool:
    """Tell whether the filters leave a token of probability p; of equal ones at the border, all."""
    above = law > p
    return (
        (not noise.top_k or int(above.sum()) < noise.top_k)
        and (noise.top_p == 1 or float((law * above).sum()) < noise.top_p)
        and (not noise.min_p or p >= noise.min_p * float(law.max()))
    )
