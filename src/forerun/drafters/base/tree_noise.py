"""What a tree of guesses sees of the sampler's noise: `csrc/drafters/tree_noise.h` explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.core.types import Seq
from forerun.decoding.processors import MIN_TEMPERATURE

if TYPE_CHECKING:
    from forerun._native import TreeNoise

SPREAD = 1.25
"""s: how much less the noise decides than it would if the guesser's probabilities were the target's."""


def noise_below(seq: Seq, spread: float = SPREAD) -> TreeNoise | None:
    """Return the noise below a sequence's last token; None where the request is greedy."""
    if seq.is_greedy:
        return None
    from forerun import _native

    params = seq.params
    temperature, top_k = max(params.temperature, MIN_TEMPERATURE), max(params.top_k, 0)
    return _native.TreeNoise(
        *seq.noise.state,
        len(seq.tokens),
        temperature,
        params.top_p,
        params.min_p,
        top_k,
        spread,
    )
