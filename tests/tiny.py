"""Tiny random models, real in every part: the same decoder, cache and head as the large ones.

They run on the native kernels, which is what users run and much faster; the torch decoder is held to the same laws in
`tests/model`.
"""

from __future__ import annotations

from forerun.model.model import Model
from forerun.model.random_model import random_config, random_model, random_weights
from forerun.weights.stored import stored_floats

ON_TORCH = False
"""Whether the torch decoder runs, in place of the native kernels."""


def tiny_model(
    seed: int = 0, *, sharpness: float = 1.0, noise: float = 0.0, **config: int
) -> Model:
    """A random model; `noise` disturbs its weights: a draft that is often, not always, right."""
    if not ON_TORCH:
        return random_model(seed, sharpness=sharpness, noise=noise, **config)
    from forerun.lab.torch import backend

    shape = random_config(**config)
    weights = random_weights(seed, shape, sharpness, noise).items()
    return backend.load(shape, [(name, stored_floats(name, weight)) for name, weight in weights])
