"""A smaller model guesses for a larger one: classic speculative decoding, as a chain or as a tree.

The draft has its own cache and reads the text itself: whatever of `seq.tokens` its cache lacks is
fed before it guesses, be it a prompt, a token the target chose, or all that happened while the
sequence was preempted. Its tree grows level by level over scratch rows; the rows of accepted nodes
stay, so nothing is computed twice. It accepts nothing: `decoding.verify` does.

A greedy request gets the draft's likeliest tokens, as point masses. A sampling request gets tokens
drawn from the draft's distribution under the request's own parameters, each with the row it was
really drawn from, and siblings drawn without replacement.

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318); trees: SpecInfer
(arXiv 2305.09781), siblings without replacement: Sequoia (arXiv 2402.12374).

M rows whose logits are needed, N nodes, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from forerun.core import tree
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.random import Stream, uniform
from forerun.core.types import EMPTY_DRAFT, NO_FEATURES, Draft, Outcome, Seq
from forerun.decoding.sampling import draw, is_plain, warp
from forerun.drafters._tuning import climb
from forerun.drafters._vocabulary import compare_vocabularies
from forerun.drafters.base import Target
from forerun.formats.checkpoint import open_checkpoint
from forerun.formats.hub import resolve
from forerun.nn.loader import load_model
from forerun.nn.model import Model
from forerun.quant.rtn import Scheme

SELF = "self"
"""The draft's name when it is the target's own file, rounded to fewer bits."""

MAX_ROWS = 256
"""Rows fed in one pass: bounds the step's buffers when a long prompt is read."""
GRIDS = {"num_draft": (1, 2, 3, 4, 5, 6, 8, 10, 12)}
"""What `tune` tries."""


__all__ = ["DraftModel", "Options", "build", "compare_vocabularies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which draft, and how much it guesses."""

    model: str
    """The draft: a path, a known name or a Hugging Face name; self is the target's own file."""
    quant: Scheme = "none"
    """Round the draft's weights to int8 or int4; none takes them as stored."""
    head_bits: Literal[4, 8] | None = None
    """Round the draft's output head to so many bits."""
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


def build(options: Options, target: Target) -> DraftModel:
    """Load the draft. Raises LoadError, and ConfigError if its vocabulary is not the target's."""
    checkpoint = open_checkpoint(_path(options.model, target))
    if target.vocabulary is not None:
        difference = compare_vocabularies(target.vocabulary, checkpoint.tokenizer())
        if difference is not None:
            raise ConfigError(
                f"'{options.model}' cannot draft for this model: {difference}; "
                "choose a draft of the same family"
            )
    model = load_model(
        checkpoint,
        device=target.device,
        backend=target.backend,
        quant=options.quant,
        head_bits=options.head_bits,
        weight_cache=target.weight_cache,
    )
    return DraftModel(model, options, target)


def _path(model: str, target: Target) -> Path:
    if model != SELF:
        return resolve(model)
    if target.path is None:
        raise ConfigError(
            "model=self needs a target that was loaded from a file: give the draft's path"
        )
    return target.path


def tune(target: Target, options: Options, score: Callable[[Options], float]) -> Options:
    """How many tokens a chain should have; a tree stays as given. The draft is named by its full path."""
    path = Path(options.model).expanduser()
    if path.exists():
        options = replace(options, model=str(path.resolve()))
    return climb(options, {} if options.branch else GRIDS, score)


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

    @property
    def prompt(self) -> list[int]:
        """The sequence's prompt."""
        return self.seq.tokens[: self.seq.num_prompt]

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


@dataclass(slots=True)
class Place:
    """A sequence's slot in the draft's cache, and the rows computed above those committed there."""

    slot: int
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


class DraftModel:
    """Runs a model of its own, one slot a sequence."""

    features = NO_FEATURES
    draws = True

    def __init__(self, model: Model, options: Options, target: Target) -> None:
        self.model = model
        self.options = options
        self.vocab_size = min(model.config.vocab_size, target.model.config.vocab_size)
        max_len = min(target.max_len, model.config.max_position)
        self.cache = model.new_cache(target.max_num_seqs, max_len)
        self._places: dict[int, Place] = {}
        self._free = list(range(target.max_num_seqs))

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Take a slot; the tokens are read when a draft is asked for."""
        self.end(seq)
        place = self._places[seq.id] = Place(self._free.pop())
        self.cache.truncate(place.slot, 0)

    def propose(self, seqs: Sequence[Seq], budget: int) -> list[Draft]:
        """One tree a sequence, level by level; empty beyond the draft's context."""
        growths = {seq.id: self._start(seq, budget) for seq in seqs if self._has_room(seq, budget)}
        growing = list(growths.values())
        for width in self.options.widths:
            if not growing:
                break
            logits = iter(self._feed(growing).unbind())
            for growth in growing:
                self._grow(growth, logits, width)
            growing = [growth for growth in growing if growth.frontier]
        return [growths[seq.id].draft() if seq.id in growths else EMPTY_DRAFT for seq in seqs]

    def observe(self, seqs: Sequence[Seq], outcomes: Sequence[Outcome]) -> None:
        """Nothing to do: the next `propose` compares what was guessed with `seq.tokens`."""

    def end(self, seq: Seq) -> None:
        """Give the slot back."""
        place = self._places.pop(seq.id, None)
        if place is not None:
            self._free.append(place.slot)

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """Weights, keys and values, and the rows of probabilities that go with drawn nodes."""
        per_row = math.ceil(self.cache.nbytes() / (self.cache.num_slots * self.cache.max_len))
        nodes = sum(
            math.prod(self.options.widths[: i + 1]) for i in range(len(self.options.widths))
        )
        probs = 4 * self.vocab_size * nodes
        rows = min(max_len, self.cache.max_len)
        return self.model.nbytes() + num_seqs * (rows * per_row + probs)

    def _has_room(self, seq: Seq, budget: int) -> bool:
        """True if a node may be drafted and the draft can read all that comes before it."""
        base = self.cache.length(self._places[seq.id].slot)
        return (
            budget > 0
            and len(seq.tokens) < self.cache.max_len
            and max(seq.tokens[base:]) < self.model.config.vocab_size
        )

    def _start(self, seq: Seq, budget: int) -> Growth:
        """Commit the computed rows that came true, and line up the tokens the cache lacks."""
        place = self._places[seq.id]
        base = self.cache.length(place.slot)
        path = _path_of(seq.tokens[base:-1], place)
        self.cache.keep(place.slot, path)
        base += len(path)
        pending = seq.tokens[base:]
        place.tokens = place.parents = ()
        room = min(budget, self.cache.max_len - len(seq.tokens))
        return Growth(seq, place.slot, base, pending, list(tree.chain(len(pending))), room)

    def _feed(self, growths: Sequence[Growth]) -> Tensor:
        """Compute every row that has not been; logits (M, V) of the growths' frontiers."""
        segments = tuple(growth.segment() for growth in growths)
        batch, wanted = Batch(segments), []
        for growth, span in zip(growths, batch.spans(), strict=True):
            wanted += [span.start + row - growth.num_fed for row in growth.frontier]
            growth.num_fed = len(growth.tokens)
            place = self._places[growth.seq.id]
            place.tokens, place.parents = tuple(growth.tokens), tuple(growth.parents)
        return self.model.head(self._states(batch, wanted))[:, : self.vocab_size]

    def _states(self, batch: Batch, wanted: Sequence[int]) -> Tensor:
        """The last hidden states (M, D) of the wanted rows of a batch, which is run in parts."""
        states, first = [], 0
        for part in batch.split(MAX_ROWS):
            last = self.model.forward(part, self.cache).last
            stop = first + part.num_rows
            states.append(last[[row - first for row in wanted if first <= row < stop]])
            first = stop
        return torch.cat(states)

    def _grow(self, growth: Growth, logits: Iterator[Tensor], width: int) -> None:
        """Give each row of the frontier up to `width` children.

        A child without confidence is kept, as dropping what was drawn would bias the outcome, but
        has no children.
        """
        params = self._params(growth.seq.params)
        choose = _likeliest if params.is_greedy else _drawn
        frontier = []
        for row in growth.frontier:
            for child in choose(growth, row, next(logits), params, min(width, growth.room)):
                growth.add(row, child)
                if child.confidence >= self.options.min_confidence:
                    frontier.append(len(growth.tokens) - 1)
        growth.frontier = frontier if growth.room else []

    def _params(self, params: SamplingParams) -> SamplingParams:
        if self.options.temperature is None or params.is_greedy:
            return params
        return replace(params, temperature=self.options.temperature)


def _path_of(tokens: Sequence[int], place: Place) -> list[int]:
    """The computed rows that hold these tokens, one after the other, as far as they do."""
    children = tree.children(place.parents)
    path: list[int] = []
    for token in tokens:
        below = children.get(path[-1] if path else -1, [])
        row = next((row for row in below if place.tokens[row] == token), None)
        if row is None:
            break
        path.append(row)
    return path


def _likeliest(
    growth: Growth, row: int, logits: Tensor, params: SamplingParams, width: int
) -> list[Child]:
    """The draft's best tokens below a row: chosen, so point masses."""
    if is_plain(params):
        probs = logits.softmax(dim=-1)
    else:
        ranking = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        probs = warp(logits, ranking, prompt=growth.prompt, generated=growth.generated(row))
    best = probs.topk(min(width, len(probs)))
    return [
        Child(token, None, confidence)
        for token, confidence in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _drawn(
    growth: Growth, row: int, logits: Tensor, params: SamplingParams, width: int
) -> list[Child]:
    """Tokens drawn without replacement, each with its distribution given the ones before it."""
    generated = growth.generated(row)
    position = len(growth.prompt) + len(generated)
    probs = warp(logits, params, prompt=growth.prompt, generated=generated)
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
