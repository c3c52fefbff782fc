"""Trees of guesses, best first: the next node is the one whose path is the most probable.

What says which tokens may follow a node is an n-gram model, a trained network, or both. The network steps over a node
when it is taken, while there are steps left; sequences step side by side, so that a step reads the weights once. With
both, a token's probability is a mean of the two: `SHARE` of the network's, the rest the n-gram model's, and the network
steps only where it is needed: over a node that is reached, and where the n-gram model's best guess is wrong, with a
probability of at least `min_doubt`. Elsewhere the n-gram model's probabilities stand alone.

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
"""Of the network in a probability that an n-gram model also gives."""
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
"""Tokens, parents, and the probability of each node once its parent is right; best first."""
TakeSteps = Callable[[int, Sequence[Step]], Sequence[tuple[Ids, Floats]]]
"""Takes the step's number and the sequences' tokens; gives each the tokens (k,) to guess, and their probabilities."""


@dataclass(slots=True)
class _Tree:
    sequence: int
    num_nodes: int
    ngrams: NGramModel | None
    places: list[GuessPlace]
    noise: TreeNoise | None = None
    next: Step | None = None
    path_probability: float = 1.0
    """Of the node taken last."""
    serial: int = 0
    known: dict[int, float] = field(default_factory=dict)
    by_depth: dict[int, dict[int, float]] = field(default_factory=dict)
    """What the network guessed, where that depends on the depth alone."""
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
    """Grow a tree below each sequence's last token, of nodes whose paths have a probability of at least `min_chance`.

    `ngrams` are the last tokens of each text, and the model to look them up in; none: the network guesses alone.
    Without `take_steps` there is no network.
    Where the network's guesses depend on the depth alone, it takes one step a depth. `noises` are what the drafts of
    requests that sample see, of each sequence; none: all are greedy.
    """
    growing = [
        _Tree(i, wanted, None, [], noise)
        for i, (wanted, noise) in enumerate(zip_longest(num_nodes, noises))
    ]
    for tree, (context, known) in zip(growing, ngrams):
        tree.ngrams = known
        if tree.num_nodes > 0:
            tree.places = [known.root(context)]
    for tree, token in zip(growing, tokens, strict=True):
        if tree.num_nodes > 0:
            _expand(tree, Step(tree.sequence, -1, token, 0, tree.noise), limits, max_depth, -1)
            _take(tree, limits, max_depth, -1)
    for number in range(limits.num_steps):
        active = [(tree, tree.next) for tree in growing if tree.next is not None]
        if not active or take_steps is None:
            break
        guesses = take_steps(number, [step for _, step in active])
        for (tree, step), (ids, probs) in zip(active, guesses, strict=True):
            guessed = dict(zip(ids.tolist(), probs.tolist(), strict=True))
            _learn(tree, step.depth, number, guessed, limits.min_chance)
            tree.next = None
            if sees_depth_alone:
                tree.by_depth[step.depth] = guessed
            _take(tree, limits, max_depth, number)
    columns = (zip(*tree.nodes, strict=True) if tree.nodes else ((), (), ()) for tree in growing)
    return [(tokens, parents, probabilities) for tokens, parents, probabilities in columns]


def models_of(texts: TextNGramModel | None) -> list[tuple[Sequence[int], NGramModel]]:
    """Return what is known of each text, as `grow` takes it; none of None."""
    return [] if texts is None else [(texts.context(i), texts.model(i)) for i in range(len(texts))]


def likeliest(
    logits: Floats, step: Step, tokens: Ids | None, temperatures: Sequence[float]
) -> tuple[Ids, Floats]:
    """Return the tokens (k,) of a row of logits (V',) to guess after a step, and their probabilities, noise apart.

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
    """Make drafts, with their probabilities as confidence."""
    return [
        Draft(tokens, parents, confidence=probabilities) if tokens else EMPTY_DRAFT
        for tokens, parents, probabilities in trees
    ]


def _expand(tree: _Tree, step: Step, limits: DraftLimits, max_depth: int, number: int) -> None:
    """Choose what follows a node: the network steps over it next, or the n-gram model alone says what may follow."""
    may = number + 1 < limits.num_steps and step.depth < max_depth and step.parent != _NO_STATE
    if tree.ngrams is not None:
        tree.known = tree.ngrams.next(tree.places[-1])
        seen: Mapping[int, float] = tree.known
        if tree.noise is not None:
            seen = tree.noise.see(step.depth, seen)
        best = max(seen.values(), default=0.0)
        may = may and tree.path_probability * (1.0 - best) >= limits.min_doubt
    if step.depth in tree.by_depth:
        guessed = tree.by_depth[step.depth]
        _learn(tree, step.depth, step.parent, guessed, limits.min_chance)
    elif may:
        tree.next = step
    elif tree.ngrams is not None:
        _open(tree, step.depth, _NO_STATE, tree.known, limits.min_chance)


def _learn(
    tree: _Tree, depth: int, number: int, guessed: Mapping[int, float], least: float
) -> None:
    share = 1.0 if tree.ngrams is None else SHARE
    probabilities = {} if tree.ngrams is None else tree.known
    probabilities = {token: (1 - SHARE) * p for token, p in probabilities.items()}
    for token, p in guessed.items():
        probabilities[token] = probabilities.get(token, 0.0) + share * p
    _open(tree, depth, number, probabilities, least)


def _open(
    tree: _Tree, depth: int, number: int, probabilities: Mapping[int, float], least: float
) -> None:
    """Put the tokens that may follow the node taken last on the heap."""
    parent = len(tree.nodes) - 1
    if tree.noise is not None:
        probabilities = tree.noise.see(depth, probabilities)
    for token, p in probabilities.items():
        if tree.path_probability * p >= least:
            item = (-tree.path_probability * p, tree.serial, token, parent, p, number, depth + 1)
            heapq.heappush(tree.heap, item)
            tree.serial += 1


def _take(tree: _Tree, limits: DraftLimits, max_depth: int, number: int) -> None:
    """Take the likeliest nodes until the network has to step over one or the tree is full."""
    while tree.heap and tree.next is None and len(tree.nodes) < tree.num_nodes:
        negative, _, token, parent, p, before, depth = heapq.heappop(tree.heap)
        tree.nodes.append((token, parent, p))
        tree.path_probability = -negative
        if len(tree.nodes) == tree.num_nodes:
            return
        if tree.ngrams is not None:
            place = tree.ngrams.follow(tree.places[parent + 1], token)
            tree.places.append(place)
        _expand(
            tree,
            Step(tree.sequence, before, token, depth, tree.noise),
            limits,
            max_depth,
            number,
        )
