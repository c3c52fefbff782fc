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
from typing import TYPE_CHECKING

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


@dataclass(slots=True)
class DraftRequest:
    """One draft of several sequences, as a network takes it; every list has an entry a sequence."""

    tokens: Sequence[int]
    """The last token of each, below which its tree grows."""
    num_nodes: Sequence[int]
    """Nodes of each tree at most."""
    num_steps: int
    """Steps of the network at most."""
    min_chance: float
    """Probability of a node's path at least."""
    min_doubt: float = 0.0
    """Where an n-gram model guesses too: probability that it is wrong, from which the network steps."""
    ngrams: TextNGramModel | None = None
    """The n-gram model of the texts; None: the network guesses alone."""
    noises: Sequence[TreeNoise | None] = ()
    """The sampler's noise of each sequence, None for a greedy one; none: all are greedy."""
    rows: Sequence[int] | None = None
    """Of `states`, or slots of the network's own cache; None: 0, 1, ..."""
    states: Floats | None = None
    """Rows (R, D) of a pass, as the target's head read them; they are not copied."""


GuessTree = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Tokens, parents, and the probability of each node once its parent is right; best first."""
TakeSteps = Callable[[int, Sequence[Step]], Sequence[tuple[Ids, Floats]]]
"""Takes the step's number and the sequences' tokens; gives each the tokens (k,) to guess, and their probabilities."""


@dataclass(slots=True)
class _Tree:
    sequence: int
    num_nodes: int
    ngrams: NGramModel | None
    positions: list[GuessPlace]
    """In the n-gram model, of the root and of each node."""
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
    request: DraftRequest, max_depth: int, take_steps: TakeSteps, *, sees_depth_alone: bool = False
) -> list[GuessTree]:
    """Grow a tree below each sequence's last token, of nodes whose paths have a probability of at least `min_chance`.

    Where the network's guesses depend on the depth alone, it takes one step a depth. `rows` and `states` are for
    `take_steps` to read.
    """
    texts, trees = request.ngrams, list[_Tree]()
    for i, (token, num_nodes) in enumerate(zip(request.tokens, request.num_nodes, strict=True)):
        tree = _Tree(i, num_nodes, None, [], request.noises[i] if request.noises else None)
        trees.append(tree)
        if num_nodes > 0:
            if texts is not None:
                tree.ngrams = texts.model(i)
                tree.positions = [tree.ngrams.root(texts.context(i))]
            _expand(tree, Step(i, -1, token, 0, tree.noise), request, max_depth, -1)
            _take(tree, request, max_depth, -1)
    for number in range(request.num_steps):
        active = [(tree, tree.next) for tree in trees if tree.next is not None]
        if not active:
            break
        guesses = take_steps(number, [step for _, step in active])
        for (tree, step), (ids, probs) in zip(active, guesses, strict=True):
            guessed = dict(zip(ids.tolist(), probs.tolist(), strict=True))
            _blend(tree, step.depth, number, guessed, request.min_chance)
            tree.next = None
            if sees_depth_alone:
                tree.by_depth[step.depth] = guessed
            _take(tree, request, max_depth, number)
    columns = (zip(*tree.nodes, strict=True) if tree.nodes else ((), (), ()) for tree in trees)
    return [(tokens, parents, probabilities) for tokens, parents, probabilities in columns]


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
    """Return the indices of the `count` largest values, descending; of equal ones the first, NaN as the largest."""
    values = np.where(np.isnan(values), np.float32(np.inf), values)
    count = min(count, len(values))
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(values, len(values) - count)[len(values) - count]
    indices = np.flatnonzero(values >= least)
    return indices[np.argsort(-values[indices], kind="stable")][:count]


def drafts_of(trees: Sequence[GuessTree]) -> list[Draft]:
    """Make drafts, with their probabilities as confidence."""
    return [
        Draft(tokens, parents, confidence=probabilities) if tokens else EMPTY_DRAFT
        for tokens, parents, probabilities in trees
    ]


def _expand(tree: _Tree, step: Step, request: DraftRequest, max_depth: int, number: int) -> None:
    """Choose what follows a node: the network steps over it next, or the n-gram model alone says what may follow."""
    may = number + 1 < request.num_steps and step.depth < max_depth and step.parent != _NO_STATE
    if tree.ngrams is not None:
        tree.known = tree.ngrams.next(tree.positions[-1])
        seen: Mapping[int, float] = tree.known
        if tree.noise is not None:
            seen = tree.noise.see(step.depth, seen)
        best = max(seen.values(), default=0.0)
        may = may and tree.path_probability * (1.0 - best) >= request.min_doubt
    if step.depth in tree.by_depth:
        guessed = tree.by_depth[step.depth]
        _blend(tree, step.depth, step.parent, guessed, request.min_chance)
    elif may:
        tree.next = step
    elif tree.ngrams is not None:
        _push(tree, step.depth, _NO_STATE, tree.known, request.min_chance)


def _blend(
    tree: _Tree, depth: int, number: int, guessed: Mapping[int, float], least: float
) -> None:
    """Put what may follow on the heap: the network's guesses, blended with the n-gram model's where there is one."""
    share = 1.0 if tree.ngrams is None else SHARE
    probabilities = {} if tree.ngrams is None else tree.known
    probabilities = {token: (1 - SHARE) * p for token, p in probabilities.items()}
    for token, p in guessed.items():
        probabilities[token] = probabilities.get(token, 0.0) + share * p
    _push(tree, depth, number, probabilities, least)


def _push(
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


def _take(tree: _Tree, request: DraftRequest, max_depth: int, number: int) -> None:
    """Take the likeliest nodes until the network has to step over one or the tree is full."""
    while tree.heap and tree.next is None and len(tree.nodes) < tree.num_nodes:
        negative, _, token, parent, p, before, depth = heapq.heappop(tree.heap)
        tree.nodes.append((token, parent, p))
        tree.path_probability = -negative
        if len(tree.nodes) == tree.num_nodes:
            return
        if tree.ngrams is not None:
            tree.positions.append(tree.ngrams.follow(tree.positions[parent + 1], token))
        step = Step(tree.sequence, before, token, depth, tree.noise)
        _expand(tree, step, request, max_depth, number)
