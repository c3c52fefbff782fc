"""Tiny random models, real in every part: the same decoder, cache and head as the large ones.

They run on the native kernels where those are there, which is what users run and much faster; the torch decoder is
held to the same laws in `tests/nn`.
"""

from __future__ import annotations

import numpy as np
import torch

from forerun.eval.random_model import random_config, random_weights
from forerun.formats.weights import FORMATS, StoredTensor
from forerun.nn.backends.native import load as load_native
from forerun.nn.backends.native import unsupported
from forerun.nn.decoder import Decoder
from forerun.nn.model import Model

BACKEND = "auto"
"""`torch` runs the torch decoder even where the native kernels are there."""


def tiny_model(
    seed: int = 0, *, sharpness: float = 1.0, noise: float = 0.0, **config: int
) -> Model:
    """A random model; `noise` disturbs its weights: a draft that is often, not always, right."""
    shape = random_config(**config)
    weights = random_weights(seed, shape, sharpness, noise)
    if BACKEND == "torch" or unsupported(shape, torch.device("cpu")) is not None:
        return Decoder(shape, weights)
    stored = {name: _stored(name, weight) for name, weight in weights.items()}
    return load_native(shape, stored, num_threads=1)


def _stored(name: str, weight: torch.Tensor) -> StoredTensor:
    rows = weight.reshape(len(weight) if weight.dim() > 1 else 1, -1).numpy()
    data = np.ascontiguousarray(rows).view(np.uint8)
    return StoredTensor(name, tuple(weight.shape), FORMATS["f32"], data)
