"""Trees of guesses, best first: the next node is the likeliest to be reached, by the product of the chances above it.

What says which tokens may follow a node is an n-gram model, a trained network, or both. The network steps over a node
when it is taken, while there are steps left; sequences step side by side, so that a step reads the weights once. With
both, a token's chance is a mean of the two: `SHARE` of the network's, the rest the n-gram model's, and the network
steps only where it is needed: over a node that is reached, and where the n-gram model's best guess is wrong, with a
chance of at least `min_doubt`. Elsewhere the n-gram model's chances stand alone.

`csrc/drafters/draft_network.cpp` and `guess_tree.cpp` grow the same trees.

R rows of a step, at most one a sequence; k tokens that may follow; V' tokens of a head.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.types import EMPTY_DRAFT, Draft
from forerun.drafting.tree_noise import TreeNoise

if TYPE_CHECKING:
    from forerun._native import GuessPlace, NGramModel, TextNGramModel

MAX_STEPS = 16
"""Steps of a draft."""
NUM_NEXT = 8
"""Tokens after a step that may become nodes."""
SHARE = 0.55
"""Of the network in a chance that an n-gram model also gives."""
_NO_STATE = -2
"""No step: the network was not asked over the node above."""


@dataclass(frozen=True, slots=True)
class Step:
    """A token that the network takes: of a sequence, after the step `parent` of the same one (-1: its first)."""

    sequence: int
    parent: int
    token: int
    depth: int
    noise: TreeNoise | None = None
    """What its sequence's draft sees."""


class DraftLimits(NamedTuple):
    """The options of the same names, as they hold for one draft."""

    num_steps: int
    min_chance: float
    min_doubt: float = 0.0


GuessTree = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Tokens, parents, and the chance of each node once its parent is right; best first."""
TakeSteps = Callable[[int, Sequence[Step]], Sequence[tuple[Ids, Floats]]]
"""Takes the step's number and the sequences' tokens; gives for each the tokens (k,) to guess, and their chances."""


@dataclass(slots=True)
class _Growth:
    sequence: int
    num_nodes: int
    ngrams: NGramModel | None
    places: list[GuessPlace]
    noise: TreeNoise | None = None
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
    take_steps: TakeSteps | None,
    ngrams: Sequence[tuple[Sequence[int], NGramModel]] = (),
    sees_depth_alone: bool = False,
    noises: Sequence[TreeNoise | None] = (),
) -> list[GuessTree]:
    """Grow a tree below each sequence's last token: of nodes that are reached with a chance of at least `min_chance`.

    `ngrams` are the last tokens of each text, and the model to look them up in; none: the network guesses alone.
    Without `take_steps` there is no network.
    Where the network's guesses depend on the depth alone, it takes one step a depth. `noises` are what the drafts of
    requests that sample see, of each sequence; none: all are greedy.
    """
    growths = [
        _Growth(i, wanted, None, [], noise)
        for i, (wanted, noise) in enumerate(zip_longest(num_nodes, noises))
    ]
    for growth, (context, known) in zip(growths, ngrams):
        growth.ngrams = known
        if growth.num_nodes > 0:
            growth.places = [known.root(context)]
    for growth, token in zip(growths, tokens, strict=True):
        if growth.num_nodes > 0:
            _reach(growth, Step(growth.sequence, -1, token, 0, growth.noise), limits, max_depth, -1)
            _take(growth, limits, max_depth, -1)
    for number in range(limits.num_steps):
        active = [(growth, growth.next) for growth in growths if growth.next is not None]
        if not active or take_steps is None:
            break
        said = take_steps(number, [step for _, step in active])
        for (growth, step), (ids, probs) in zip(active, said, strict=True):
            found = dict(zip(ids.tolist(), probs.tolist(), strict=True))
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


def models_of(texts: TextNGramModel | None) -> list[tuple[Sequence[int], NGramModel]]:
    """Return what is known of each text, as `grow` takes it; none of None."""
    return [] if texts is None else [(texts.context(i), texts.model(i)) for i in range(len(texts))]


def likeliest(
    logits: Floats, step: Step, tokens: Ids | None, temperatures: Sequence[float]
) -> tuple[Ids, Floats]:
    """Return the tokens (k,) of a row of logits (V',) to guess after a step, and their chances, noise apart.

    They are the likeliest, and after them those of the largest scores with the noise that the step's draft sees.
    `tokens` (V',) are those of the logits, None: all; `temperatures` go by depth, the last for all below.
    """
    logits = logits / np.float32(temperatures[min(step.depth, len(temperatures) - 1)])
    best = largest(logits, NUM_NEXT)
    if step.noise is not None:
        scored = step.noise.largest(step.depth, logits, tokens, NUM_NEXT)
        best = np.concatenate([best, scored[~np.isin(scored, best)]])
    return best if tokens is None else tokens[best], softmax(logits)[best]


def softmax(logits: Floats) -> Floats:
    """Return the probabilities (n,) of logits (n,); NaN where they are not numbers."""
    with np.errstate(invalid="ignore"):
        exps: Floats = np.exp(logits - logits.max())
    exps /= exps.sum()
    return exps


def largest(values: Floats, count: int) -> Ids:
    """Return where the largest values stand, descending; of equal ones the first, NaN as the largest."""
    values = np.where(np.isnan(values), np.float32(np.inf), values)
    count = min(count, len(values))
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(values, len(values) - count)[len(values) - count]
    found = np.flatnonzero(values >= least)
    return found[np.argsort(-values[found], kind="stable")][:count]


def drafts_of(trees: Sequence[GuessTree]) -> list[Draft]:
    """Make drafts, with their chances as confidence."""
    return [
        Draft(tokens, parents, confidence=chances) if tokens else EMPTY_DRAFT
        for tokens, parents, chances in trees
    ]


def _reach(growth: _Growth, step: Step, limits: DraftLimits, max_depth: int, number: int) -> None:
    """Choose what follows a node: the network steps over it next, or the n-gram model alone says what may follow."""
    may = number + 1 < limits.num_steps and step.depth < max_depth and step.parent != _NO_STATE
    if growth.ngrams is not None:
        growth.known = growth.ngrams.next(growth.places[-1])
        seen: Mapping[int, float] = growth.known
        if growth.noise is not None:
            seen = growth.noise.see(step.depth, seen)
        best = max(seen.values(), default=0.0)
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
    """Put the tokens that may follow the node taken last on the heap."""
    parent = len(growth.nodes) - 1
    if growth.noise is not None:
        chances = growth.noise.see(depth, chances)
    for token, p in chances.items():
        if growth.reach * p >= least:
            item = (-growth.reach * p, growth.serial, token, parent, p, number, depth + 1)
            heapq.heappush(growth.heap, item)
            growth.serial += 1


def _take(growth: _Growth, limits: DraftLimits, max_depth: int, number: int) -> None:
    """Take the likeliest nodes until the network has to step over one or the tree is full."""
    while growth.heap and growth.next is None and len(growth.nodes) < growth.num_nodes:
        negative, _, token, parent, p, before, depth = heapq.heappop(growth.heap)
        growth.nodes.append((token, parent, p))
        growth.reach = -negative
        if len(growth.nodes) == growth.num_nodes:
            return
        if growth.ngrams is not None:
            place = growth.ngrams.follow(growth.places[parent + 1], token)
            growth.places.append(place)
        _reach(
            growth,
            Step(growth.sequence, before, token, depth, growth.noise),
            limits,
            max_depth,
            number,
        )
