"""The tree of a network that guesses a token at a time: the node that is likeliest to be reached is taken next.

The network steps over a node when it is taken, while there are steps left; sequences step side by side, so that a step
reads the weights once. `csrc/drafters/draft_network.cpp` grows the same trees for the native networks.

With an n-gram model, which says what tables and texts know, a token's chance is a mean of the two: `SHARE` of the
network's, the rest the model's. The network then steps only where it is needed: over a node that is reached, and
where the model's best guess is wrong, with a chance of at least `min_doubt`. Elsewhere the model's chances stand
alone.

R rows of a step, at most one a sequence; k tokens that may follow; V' tokens of a head.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from forerun.core.errors import ConfigError, check_least
from forerun.core.types import EMPTY_DRAFT, Draft
from forerun.drafting.ngram.guess_tree import GuessPlace, GuessTree, NGramModel, TextNGramModel
from forerun.weights.rtn import Scheme

MAX_STEPS = 16
"""Steps of a draft."""
NUM_NEXT = 8
"""Tokens after a step that may become nodes."""
SHARE = 0.55
"""Of the network in a chance that an n-gram model also gives."""
_BITS = {"none": 16, "int8": 8, "int4": 4}
_NO_STATE = -2
"""No step: the network was not asked over the node above."""


@dataclass(frozen=True, slots=True)
class Step:
    """A token that the network takes: of a sequence, after the step `parent` of the same one (-1: its first)."""

    sequence: int
    parent: int
    token: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Which network, and how much it guesses."""

    model: str
    """A folder of `forerun train drafter`."""
    num_draft: int = 7
    """Nodes of a tree at most."""
    num_steps: int = 4
    """Steps of the network in a draft at most: tokens after which it says what may come next."""
    min_chance: float = 0.1
    """Chance that a node is reached, at least."""
    quant: Scheme = "int4"
    """How the network's weights are rounded, none: to fp16; rows of the target's head keep their own way."""
    min_doubt: float = 0.2
    """With `recycling`: the least chance that its guess is needed and wrong, where the network is asked."""

    @property
    def bits(self) -> int:
        """Of a weight of the network."""
        return _BITS[self.quant]

    def __post_init__(self) -> None:
        check_least("num_draft", self.num_draft, 1)
        if not 1 <= self.num_steps <= MAX_STEPS:
            raise ConfigError(f"num_steps must be 1 to {MAX_STEPS}, got {self.num_steps}")
        for name in ("min_chance", "min_doubt"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be 0 to 1, got {getattr(self, name)}")


class DraftLimits(NamedTuple):
    """Of one draft: see the options of the same names."""

    num_steps: int
    min_chance: float
    min_doubt: float = 0.0


TakeSteps = Callable[[int, Sequence[Step]], tuple[Tensor, Tensor]]
"""Takes the number of the step and the sequences' tokens; gives the likeliest next ones (R, k) and their chances."""


@dataclass(slots=True)
class _Growth:
    sequence: int
    num_nodes: int
    ngrams: NGramModel | None
    places: list[GuessPlace]
    next: Step | None = None
    reach: float = 1.0
    serial: int = 0
    known: dict[int, float] = field(default_factory=dict)
    by_depth: dict[int, dict[int, float]] = field(default_factory=dict)
    """What the network said, where that depends on the depth alone."""
    nodes: list[tuple[int, int, float]] = field(default_factory=list)
    heap: list[tuple[float, int, int, int, float, int, int]] = field(default_factory=list)


def grow(
    tokens: Sequence[int],
    num_nodes: Sequence[int],
    limits: DraftLimits,
    max_depth: int,
    take_steps: TakeSteps,
    ngrams: TextNGramModel = (),
    sees_depth_alone: bool = False,
) -> list[GuessTree]:
    """A tree below each sequence's last token: nodes that are reached with a chance of at least `min_chance`.

    `ngrams` is what is known of each text; none: the network guesses alone. Where the network's guesses depend on the
    depth alone, it takes one step a depth.
    """
    growths = [_Growth(i, wanted, None, []) for i, wanted in enumerate(num_nodes)]
    for growth, (context, known) in zip(growths, ngrams):
        growth.ngrams = known
        if growth.num_nodes > 0:
            growth.places = [known.root(context)]
    for growth, token in zip(growths, tokens, strict=True):
        if growth.num_nodes > 0:
            _reach(growth, Step(growth.sequence, -1, token, 0), limits, max_depth, -1)
            _take(growth, limits, max_depth, -1)
    for number in range(limits.num_steps):
        active = [(growth, growth.next) for growth in growths if growth.next is not None]
        if not active:
            break
        ids, probs = take_steps(number, [step for _, step in active])
        for (growth, step), row, p in zip(active, ids.tolist(), probs.tolist(), strict=True):
            found = dict(zip(row, p, strict=True))
            _learn(growth, step.depth, number, found, limits.min_chance)
            growth.next = None
            if sees_depth_alone:
                growth.by_depth[step.depth] = found
            _take(growth, limits, max_depth, number)
    trees = []
    for growth in growths:
        nodes, parents, chances = zip(*growth.nodes, strict=True) if growth.nodes else ((), (), ())
        trees.append((nodes, parents, chances))
    return trees


def likeliest(
    logits: Tensor, depth: int, tokens: Tensor | None, temperatures: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens (k,) of a row of logits (V',) and their chances, the first of equal ones first.

    `tokens` (V',) are those of the logits, None for all; `temperatures` go by depth, the last for all below.
    """
    probs = (logits / temperatures[min(depth, len(temperatures) - 1)]).softmax(-1)
    found = probs.sort(descending=True, stable=True)
    ids = found.indices[:NUM_NEXT]
    return ids if tokens is None else tokens.to(ids.device)[ids], found.values[: len(ids)]


def drafts_of(trees: Sequence[GuessTree]) -> list[Draft]:
    """As point masses, with their chances."""
    return [
        Draft(tokens, parents, confidence=chances) if tokens else EMPTY_DRAFT
        for tokens, parents, chances in trees
    ]


def _reach(growth: _Growth, step: Step, limits: DraftLimits, max_depth: int, number: int) -> None:
    """At a node: the network steps over it next, or the n-gram model alone says what may follow."""
    may = number + 1 < limits.num_steps and step.depth < max_depth and step.parent != _NO_STATE
    if growth.ngrams is not None:
        growth.known = growth.ngrams.next(growth.places[-1])
        best = max(growth.known.values(), default=0.0)
        may = may and growth.reach * (1.0 - best) >= limits.min_doubt
    if step.depth in growth.by_depth:
        said = growth.by_depth[step.depth]
        _learn(growth, step.depth, step.parent, said, limits.min_chance)
    elif may:
        growth.next = step
    elif growth.ngrams is not None:
        _open(growth, step.depth, _NO_STATE, growth.known, limits.min_chance)


def _learn(
    growth: _Growth, depth: int, number: int, found: Mapping[int, float], least: float
) -> None:
    share = 1.0 if growth.ngrams is None else SHARE
    chances = {} if growth.ngrams is None else growth.known
    chances = {token: (1 - SHARE) * p for token, p in chances.items()}
    for token, p in found.items():
        chances[token] = chances.get(token, 0.0) + share * p
    _open(growth, depth, number, chances, least)


def _open(
    growth: _Growth, depth: int, number: int, chances: Mapping[int, float], least: float
) -> None:
    """Tokens that may follow the node that was taken last."""
    parent = len(growth.nodes) - 1
    for token, p in chances.items():
        if growth.reach * p >= least:
            item = (-growth.reach * p, growth.serial, token, parent, p, number, depth + 1)
            heapq.heappush(growth.heap, item)
            growth.serial += 1


def _take(growth: _Growth, limits: DraftLimits, max_depth: int, number: int) -> None:
    """The likeliest nodes, until the network has to step over one or the tree is full."""
    while growth.heap and growth.next is None and len(growth.nodes) < growth.num_nodes:
        negative, _, token, parent, p, before, depth = heapq.heappop(growth.heap)
        growth.nodes.append((token, parent, p))
        growth.reach = -negative
        if len(growth.nodes) == growth.num_nodes:
            return
        if growth.ngrams is not None:
            place = growth.ngrams.follow(growth.places[parent + 1], token)
            growth.places.append(place)
        _reach(growth, Step(growth.sequence, before, token, depth), limits, max_depth, number)
