"""How a tree of guesses sees the sampler's noise: the same numbers that the target's logits will meet.

A request that samples takes argmax (l + g). Of guesses with chances p and noise g the target's choice is about

    softmax((log p^(1/T) + g) / s)

where what is left to other tokens counts as one more, of the mean noise. s = 1 would be right if p were the target's
law; it differs, most in its tail, so the noise decides less than it says (arXiv 2408.07978, 2506.05632).
`csrc/drafters/guess_tree.cpp` computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from forerun.core.random import Noise
from forerun.core.types import Seq

if TYPE_CHECKING:
    from forerun import _native

SPREAD = 1.5
"""s."""
MIN_TEMPERATURE = 0.05
"""Below it, chances are no longer sharpened."""


class TreeNoise(NamedTuple):
    """A sequence's noise below its last token: the `position` of the next one, and 1 / temperature."""

    noise: Noise
    position: int
    factor: float

    def temper(self, chances: Mapping[int, float]) -> dict[int, float]:
        """Return chances at the request's temperature; what is left to others counts as one token."""
        if self.factor == 1 or not chances:
            return {**chances}
        powers = {token: p**self.factor for token, p in chances.items()}
        total = math.pow(_left(chances), self.factor)
        for power in powers.values():
            total += power
        return {token: power / total for token, power in powers.items()}

    def of(self, depth: int, tokens: Tensor) -> Tensor:
        """Return the noise (n,) of tokens (n,) at a depth."""
        return torch.from_numpy(self.noise.of(self.position + depth, tokens.numpy()))

    def see(self, depth: int, chances: Mapping[int, float]) -> dict[int, float]:
        """Return the chances that tokens at a depth are the target's choice."""
        if not chances:
            return {}
        noise = self.noise.of(self.position + depth, np.fromiter(chances, np.int32))
        total = math.exp((math.log(_left(chances)) + np.euler_gamma) / SPREAD)
        scores = {}
        for (token, p), g in zip(chances.items(), noise.tolist(), strict=True):
            scores[token] = math.exp((math.log(p) + g) / SPREAD) if p > 0 else 0.0
            total += scores[token]
        return {token: score / total for token, score in scores.items()}

    def native(self) -> _native.TreeNoise:
        """Return the same for the native trees."""
        from forerun import _native

        return _native.TreeNoise(*self.noise.state, self.position, self.factor)


def noise_below(seq: Seq) -> TreeNoise | None:
    """Return what a draft of a sequence sees; None where the request is greedy."""
    if seq.params.is_greedy:
        return None
    factor = 1 / max(seq.params.temperature, MIN_TEMPERATURE)
    return TreeNoise(seq.noise, len(seq.tokens), factor)


def _left(chances: Mapping[int, float]) -> float:
    rest = 1.0
    for p in chances.values():
        rest -= p
    return max(rest, 1e-9)
