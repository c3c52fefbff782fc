"""Trees of guesses, node after node in plain Python: the oracle of `csrc/drafters/growth.cpp` and `tree_noise.cpp`.

All nodes that may be taken lie in one list, and the one whose path is the most probable is taken next.

R rows of a step; k tokens that may follow; V' tokens of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.random import Noise
from forerun.core.types import GuessTree
from forerun.drafters.base.networks.options import MAX_STEPS
from forerun.drafters.base.tree_noise import SPREAD

NUM_NEXT = 8
"""Tokens after a step that may become nodes."""
SHARE = 0.55
"""Of a network in a probability that others gave before it."""


class Step(NamedTuple):
    """A token that a network takes: of a sequence, after its step `parent` (-1: its first)."""

    sequence: int
    parent: int
    token: int
    depth: int
    path: Sequence[int] = ()
    """The drafted tokens since step `parent`."""


@dataclass
class DraftRequest:
    """One draft of several sequences; every list has an entry a sequence."""

    tokens: Sequence[int]
    num_nodes: Sequence[int]
    min_chance: float
    ngrams: Any = None
    noises: Sequence[Any] = ()


def grown(request: DraftRequest, partners: Sequence[Any]) -> Any:
    """Grow the native trees, and return how many steps each partner took, by sequence."""
    from forerun import _native

    return _native.grow(
        partners,
        request.tokens,
        request.num_nodes,
        request.min_chance,
        request.ngrams,
        request.noises,
    )


Guess = Callable[[int, Step], tuple[Ids, Floats]]
"""Takes a step's number and the step; gives the tokens (k,) to guess, and their probabilities."""


@dataclass
class Asked:
    """A partner, and how it is asked; `num_steps` by sequence."""

    guess: Guess
    num_steps: Sequence[int]
    min_doubt: float = 0.0
    share: float = SHARE
    max_depth: int = MAX_STEPS
    sees_depth_alone: bool = False
    knows_paths: bool = False


@dataclass
class Solo:
    """A draft with one network; `rows` are those of `states`, or slots of its cache."""

    tokens: Sequence[int]
    num_nodes: Sequence[int]
    num_steps: int
    min_chance: float
    min_doubt: float = 0.0
    ngrams: Any = None
    noises: Sequence[Any] = ()
    rows: Sequence[int] | None = None
    states: Floats | None = None

    @property
    def request(self) -> DraftRequest:
        """What does not depend on the network."""
        return DraftRequest(self.tokens, self.num_nodes, self.min_chance, self.ngrams, self.noises)

    def asked(self, guess: Guess, **rule) -> list[Asked]:
        """The oracle of the network as the only partner."""
        return [Asked(guess, [self.num_steps] * len(self.tokens), self.min_doubt, **rule)]


def draft(network, solo: Solo) -> list[GuessTree]:
    """Grow the trees of a network or of its oracle."""
    if not hasattr(network, "asked"):
        return network.draft(solo)
    steps = [solo.num_steps] * len(solo.tokens)
    return grown(solo.request, [network.asked(steps, solo.min_doubt, solo.rows, solo.states)])[0]


class TreeNoise(NamedTuple):
    """A sequence's noise below its last token, `position` the next one's, and its request's temperature and filters."""

    noise: Noise
    position: int
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    spread: float = SPREAD

    def native(self):
        """Return the same for the native trees."""
        from forerun import _native

        return _native.TreeNoise(*self.noise.state, *self[1:])

    def see(self, depth: int, probabilities: Mapping[int, float]) -> dict[int, float]:
        """Return the probabilities that tokens at a depth are the target's choice."""
        if not probabilities:
            return {}
        known = self._filtered(probabilities)
        noise = self.noise.of(self.position + depth, np.fromiter(known, np.int32)).tolist()
        rest = 1.0
        for p in known.values():
            rest -= p
        left = math.log(max(rest, 1e-9)) + self.temperature * np.euler_gamma
        total, scores = math.exp(left / self.spread), dict[int, float]()
        for (token, p), g in zip(known.items(), noise, strict=True):
            score = (math.log(p) + self.temperature * g) / self.spread if p > 0 else -math.inf
            scores[token] = math.exp(score)
            total += scores[token]
        return {token: score / total for token, score in scores.items()}

    def _filtered(self, probabilities: Mapping[int, float]) -> Mapping[int, float]:
        if self.top_p == 1 and self.min_p == 0 and self.top_k == 0:
            return probabilities
        ranked = sorted(probabilities.items(), key=lambda item: item[1], reverse=True)
        least, total, kept = self.min_p * ranked[0][1], 0.0, dict[int, float]()
        for token, p in ranked[: self.top_k or None]:
            if total >= self.top_p or p < least:
                break
            kept[token] = p
            total += p
        if len(kept) == len(ranked):
            total = max(total, self.top_p)
        return {token: p / total for token, p in kept.items()}


def native_noises(noises: Sequence[TreeNoise | None]) -> list:
    """Return what the native trees take in their place."""
    return [noise and noise.native() for noise in noises]


def noise_of(noises: Sequence[TreeNoise | None], i: int) -> TreeNoise | None:
    """Return the noise of a sequence; without any, all requests are greedy."""
    return noises[i] if noises else None


def softmax(logits: Floats) -> Floats:
    """Return the probabilities (n,) of logits (n,)."""
    exps: Floats = np.exp(logits - logits.max())
    exps /= exps.sum()
    return exps


def likeliest(
    logits: Floats,
    step: Step,
    tokens: Ids | None,
    temperatures: Sequence[float],
    noise: TreeNoise | None = None,
) -> tuple[Ids, Floats]:
    """Return the tokens (k,) of logits (V',) to guess after a step, the likeliest and those of the largest scores."""
    if not np.isfinite(logits.max()):
        return np.empty(0, np.int64), np.empty(0, np.float32)
    logits = logits / np.float32(temperatures[min(step.depth, len(temperatures) - 1)])
    ids = np.arange(len(logits)) if tokens is None else tokens
    best = np.argsort(-logits, kind="stable")[:NUM_NEXT]
    if noise is not None:
        scores = logits * np.float32(1 / noise.temperature)
        scores = scores + noise.noise.of(noise.position + step.depth, ids)
        scored = np.argsort(-scores, kind="stable")[:NUM_NEXT]
        best = np.concatenate([best, scored[~np.isin(scored, best)]])
    best = best[logits[best] > -np.inf]
    return ids[best], softmax(logits.astype(np.float64))[best]


def grow(request: DraftRequest, partners: Sequence[Asked]) -> list[GuessTree]:
    """Grow a tree below each sequence's last token with partners, the first asked first."""
    trees = []
    for i, num_nodes in enumerate(request.num_nodes):
        tree = _Tree(request, i, partners)
        while len(tree.nodes) < num_nodes and tree.take():
            pass
        columns = zip(*tree.nodes, strict=True) if tree.nodes else ((), (), ())
        tokens, parents, probabilities = columns
        trees.append((tokens, parents, probabilities))
    return trees


class _Tree:
    """A tree, and the node that was taken last; its `path` are the nodes from the root to it."""

    def __init__(self, request: DraftRequest, i: int, partners: Sequence[Asked]) -> None:
        self.request, self.i, self.partners = request, i, partners
        self.noise = noise_of(request.noises, i)
        texts = request.ngrams
        self.ngrams = None if texts is None else texts.model(i)
        self.places = [] if texts is None else [texts.model(i).root(texts.context(i))]
        self.nodes: list[tuple[int, int, float]] = []
        self.candidates: list[tuple[float, int, int, float]] = []
        self.by_depth: list[dict[int, Mapping[int, float]]] = [{} for _ in partners]
        self.steps: list[dict[int, int]] = [{} for _ in partners]
        """Of each partner, by node (-1: the root): its step over it."""
        self.path: list[int] = []
        self.token, self.reach = request.tokens[i], 1.0
        self.numbers = [0] * len(partners)
        """Of each partner's next step."""

    @property
    def node(self) -> int:
        """The node that was taken last."""
        return self.path[-1] if self.path else -1

    def take(self) -> bool:
        """Say what may follow the last node, and take the most probable candidate, if there is one."""
        for token, p in self.seen(self.following()).items():
            if self.reach * p >= self.request.min_chance:
                self.candidates.append((self.reach * p, token, self.node, p))
        if not self.candidates:
            return False
        taken = max(self.candidates, key=lambda each: each[0])  # of equal ones the first
        self.candidates.remove(taken)
        self.reach, self.token, above, p = taken
        self.nodes.append((self.token, above, p))
        self.path = [len(self.nodes) - 1]
        while above >= 0:
            self.path.insert(0, above)
            above = self.nodes[above][1]
        if self.ngrams is not None:
            above = self.nodes[-1][1]
            self.places.append(self.ngrams.follow(self.places[above + 1], self.token))
        return True

    def following(self) -> Mapping[int, float]:
        """Return what the tables and the partners that are asked say may follow."""
        known = None if self.ngrams is None else self.ngrams.next(self.places[-1])
        for number, partner in enumerate(self.partners):
            said = self.said(number, partner, known)
            if said is not None:
                known = blended(known, said, partner.share)
        return known or {}

    def said(
        self, number: int, partner: Asked, known: Mapping[int, float] | None
    ) -> Mapping[int, float] | None:
        """Return what a partner says, None if it is not asked."""
        steps, depth = self.steps[number], len(self.path)
        above = ([-1, *self.path][:-1])[::-1]  # the nearest first
        if by_depth := self.by_depth[number].get(depth):
            steps[self.node] = steps[above[0]]
            return by_depth
        if self.numbers[number] >= partner.num_steps[self.i] or depth >= partner.max_depth:
            return None
        if above and above[0] not in steps and not partner.knows_paths:
            return None
        if known is not None:
            best = max(self.seen(known).values(), default=0.0)
            if self.reach * (1 - best) < partner.min_doubt:
                return None
        last = next((node for node in above if node in steps), None)
        first = 0 if last is None or last < 0 else self.path.index(last) + 1
        path = tuple(self.nodes[node][0] for node in self.path[first:])
        parent = -1 if last is None else steps[last]
        steps[self.node] = step = self.numbers[number]
        self.numbers[number] += 1
        ids, chances = partner.guess(step, Step(self.i, parent, self.token, depth, path))
        guessed = dict(zip(ids.tolist(), map(float, chances), strict=True))
        if partner.sees_depth_alone and guessed:
            self.by_depth[number][depth] = guessed
        return guessed

    def seen(self, probabilities: Mapping[int, float]) -> Mapping[int, float]:
        """Return probabilities as the sampler's noise leaves them."""
        depth = len(self.path)
        return probabilities if self.noise is None else self.noise.see(depth, probabilities)


def blended(
    known: Mapping[int, float] | None, said: Mapping[int, float], share: float
) -> Mapping[int, float]:
    """Return the mean of what was said before and what a partner says; None: nobody spoke before."""
    if known is None:
        return said
    mean = {token: (1 - share) * p for token, p in known.items()}
    for token, p in said.items():
        mean[token] = mean.get(token, 0.0) + share * p
    return mean
