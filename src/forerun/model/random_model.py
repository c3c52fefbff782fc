"""Tiny random models, real in every part: what drafters are checked on where no weights are at hand."""

from __future__ import annotations

import numpy as np

from forerun.core.arrays import Floats
from forerun.model.backends import native
from forerun.model.config import ModelConfig, RopeConfig
from forerun.model.model import Model
from forerun.model.shapes import weight_shapes
from forerun.weights.stored import stored_floats


def random_config(
    vocab_size: int = 24, num_layers: int = 2, max_position: int = 512, head_dim: int = 16
) -> ModelConfig:
    """Return a llama of a few thousand parameters, with grouped queries and a tied head."""
    return ModelConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        max_position=max_position,
        rope=RopeConfig(theta=10_000.0, rotary_dim=head_dim),
        tied_head=True,
    )


def random_weights(
    seed: int, config: ModelConfig, sharpness: float = 1.0, noise: float = 0.0
) -> dict[str, Floats]:
    """Return the weights by name. `sharpness` scales the logits; `noise` disturbs the weights of that seed."""
    draw = np.random.default_rng(seed)
    weights = {
        name: draw.standard_normal(shape, np.float32) * np.float32(0.3 if len(shape) > 1 else 0.1)
        for name, shape in weight_shapes(config).items()
    }
    for name in weights:
        if name.endswith("norm"):
            weights[name] = 1 + weights[name]
        if name.endswith(".decay"):  # states fade
            weights[name] = -np.abs(weights[name])
    weights["norm"] = weights["norm"] * np.float32(sharpness)
    draw = np.random.default_rng(1000 + seed)
    for name, weight in weights.items():
        disturbance = draw.standard_normal(weight.shape, np.float32)
        weights[name] = weight + np.float32(noise) * weight.std() * disturbance
    return weights


def random_model(
    seed: int = 0, *, sharpness: float = 1.0, noise: float = 0.0, **config: int
) -> Model:
    """Return a random model on the native kernels; with noise, one that often says the same."""
    shape = random_config(**config)
    weights = random_weights(seed, shape, sharpness, noise).items()
    stored = [(name, stored_floats(name, weight)) for name, weight in weights]
    return native.load(shape, stored, num_threads=1)
