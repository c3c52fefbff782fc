"""How a tree of guesses sees the sampler's noise: the same numbers that the target's logits will meet.

A request that samples at temperature T takes argmax (l / T + g). Of guesses with probabilities p and noise g, the
target's choice is about

    softmax((log p + T g) / s)

where what is left to other tokens counts as one more, of the mean noise. s = 1 would be right if p were the target's
distribution; it differs, most in its tail, so the noise decides less than it says (arXiv 2408.07978, 2506.05632).
`csrc/drafters/guess_tree.cpp` computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.random import Noise
from forerun.core.types import Seq
from forerun.decoding.processors import MIN_TEMPERATURE

if TYPE_CHECKING:
    from forerun import _native

SPREAD = 1.25
"""s."""


class TreeNoise(NamedTuple):
    """A sequence's noise below its last token, `position` the next one's, and its request's temperature and filters."""

    noise: Noise
    position: int
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    """0: all."""
    spread: float = SPREAD

    def largest(self, depth: int, logits: Floats, tokens: Ids | None, k: int) -> Ids:
        """Return where the k largest scores of logits (n,) at a depth stand; tokens (n,) None: the first ids."""
        position, factor = self.position + depth, 1 / self.temperature
        return np.array(self.noise.largest(position, logits, tokens, factor, k), np.int64)

    def see(self, depth: int, probabilities: Mapping[int, float]) -> dict[int, float]:
        """Return the probabilities that tokens at a depth are the target's choice."""
        if not probabilities:
            return {}
        probabilities = self._filtered(probabilities)
        noise = self.noise.of(self.position + depth, np.fromiter(probabilities, np.int32))
        left = math.log(_left(probabilities)) + self.temperature * np.euler_gamma
        total = math.exp(left / self.spread)
        scores = {}
        for (token, p), g in zip(probabilities.items(), noise.tolist(), strict=True):
            score = (math.log(p) + self.temperature * g) / self.spread if p > 0 else -math.inf
            scores[token] = math.exp(score)
            total += scores[token]
        return {token: score / total for token, score in scores.items()}

    def native(self) -> _native.TreeNoise:
        """Return the same for the native trees."""
        from forerun import _native

        _, position, temperature, top_p, min_p, top_k, _ = self
        return _native.TreeNoise(*self.noise.state, position, temperature, top_p, min_p, top_k)

    def _filtered(self, probabilities: Mapping[int, float]) -> Mapping[int, float]:
        """Keep tokens that the request's filters are likely to leave, as shares of all that they leave."""
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
            total = max(total, self.top_p)  # the filters may leave more
        return {token: p / total for token, p in kept.items()}


def noise_below(seq: Seq) -> TreeNoise | None:
    """Return the noise below a sequence's last token; None where the request is greedy."""
    if seq.params.is_greedy:
        return None
    params = seq.params
    temperature, top_k = max(params.temperature, MIN_TEMPERATURE), max(params.top_k, 0)
    return TreeNoise(seq.noise, len(seq.tokens), temperature, params.top_p, params.min_p, top_k)


def native_noises(noises: Sequence[TreeNoise | None]) -> list[_native.TreeNoise | None]:
    """Return what the native trees take in their place."""
    return [noise and noise.native() for noise in noises]


def _left(probabilities: Mapping[int, float]) -> float:
    rest = 1.0
    for p in probabilities.values():
        rest -= p
    return max(rest, 1e-9)
