"""Trees of guesses, node after node in plain Python: the oracle of `csrc/drafters/growth.cpp` and `tree_noise.cpp`.

All nodes that may be taken lie in one list, and the one whose path is the most probable is taken next.

R rows of a step; k tokens that may follow; V' tokens of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.random import Noise
from forerun.drafting.best_first import DraftRequest, GuessTree
from forerun.drafting.tree_noise import SPREAD

NUM_NEXT = 8
"""Tokens after a step that may become nodes."""
SHARE = 0.55
"""Of the network in a probability that an n-gram model also gives."""


class Step(NamedTuple):
    """A token that a network takes: of a sequence, after its step `parent` (-1: its first)."""

    sequence: int
    parent: int
    token: int
    depth: int


Guess = Callable[[int, Step], tuple[Ids, Floats]]
"""Takes a step's number and the step; gives the tokens (k,) to guess, and their probabilities."""


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


def grow(
    request: DraftRequest, max_depth: int, guess: Guess, *, sees_depth_alone: bool = False
) -> list[GuessTree]:
    """Grow a tree below each sequence's last token."""
    trees = []
    for i, num_nodes in enumerate(request.num_nodes):
        tree = _Tree(request, i, max_depth, guess, sees_depth_alone)
        while len(tree.nodes) < num_nodes and tree.take():
            pass
        columns = zip(*tree.nodes, strict=True) if tree.nodes else ((), (), ())
        tokens, parents, probabilities = columns
        trees.append((tokens, parents, probabilities))
    return trees


class _Tree:
    """A tree, and the node that was taken last; its `step` is the one that guessed it, None: nobody was asked."""

    def __init__(
        self, request: DraftRequest, i: int, max_depth: int, guess: Guess, sees_depth_alone: bool
    ) -> None:
        self.request, self.i, self.max_depth, self.guess = request, i, max_depth, guess
        self.keeps_depths = sees_depth_alone
        self.noise = noise_of(request.noises, i)
        texts = request.ngrams
        self.ngrams = None if texts is None else texts.model(i)
        self.places = [] if texts is None else [texts.model(i).root(texts.context(i))]
        self.nodes: list[tuple[int, int, float]] = []
        self.candidates: list[tuple[float, int, int, float, int | None, int]] = []
        self.by_depth: dict[int, Mapping[int, float]] = {}
        self.step, self.token, self.depth, self.reach = -1, request.tokens[i], 0, 1.0
        self.number = 0
        """Of the next step."""

    def take(self) -> bool:
        """Say what may follow the last node, and take the most probable candidate, if there is one."""
        following, step = self.following()
        for token, p in self.seen(following).items():
            if self.reach * p >= self.request.min_chance:
                above, depth = len(self.nodes) - 1, self.depth + 1
                self.candidates.append((self.reach * p, token, above, p, step, depth))
        if not self.candidates:
            return False
        taken = max(self.candidates, key=lambda each: each[0])  # of equal ones the first
        self.candidates.remove(taken)
        self.reach, self.token, above, p, self.step, self.depth = taken
        self.nodes.append((self.token, above, p))
        if self.ngrams is not None:
            self.places.append(self.ngrams.follow(self.places[above + 1], self.token))
        return True

    def following(self) -> tuple[Mapping[int, float], int | None]:
        """Return what the tables, the network or both say may follow, and the step that said it."""
        known = {} if self.ngrams is None else self.ngrams.next(self.places[-1])
        if self.depth in self.by_depth:
            return self.blended(known, self.by_depth[self.depth]), self.step
        if not self.asks(known):
            return known, None
        step, self.number = self.number, self.number + 1
        ids, chances = self.guess(step, Step(self.i, self.step, self.token, self.depth))
        guessed = dict(zip(ids.tolist(), map(float, chances), strict=True))
        if self.keeps_depths and guessed:
            self.by_depth[self.depth] = guessed
        return self.blended(known, guessed), step

    def asks(self, known: Mapping[int, float]) -> bool:
        """Tell whether the network steps over the last node."""
        if self.number >= self.request.num_steps or self.depth >= self.max_depth:
            return False
        best = max(self.seen(known).values(), default=0.0)
        doubt = self.reach * (1 - best)
        return self.step is not None and (self.ngrams is None or doubt >= self.request.min_doubt)

    def blended(
        self, known: Mapping[int, float], guessed: Mapping[int, float]
    ) -> Mapping[int, float]:
        """Return the mean of what both say."""
        if self.ngrams is None:
            return guessed
        mean = {token: (1 - SHARE) * p for token, p in known.items()}
        for token, p in guessed.items():
            mean[token] = mean.get(token, 0.0) + SHARE * p
        return mean

    def seen(self, probabilities: Mapping[int, float]) -> Mapping[int, float]:
        """Return probabilities as the sampler's noise leaves them."""
        return probabilities if self.noise is None else self.noise.see(self.depth, probabilities)
