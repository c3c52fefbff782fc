"""Random models of `forerun.model.random_model`, with weights as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.model import random_model as arrays
from forerun.model.config import ModelConfig
from forerun.model.random_model import random_config, random_model
from forerun.weights.stored import StoredTensor

__all__ = ["random_config", "random_model", "random_weights", "stored_floats"]


def random_weights(
    seed: int, config: ModelConfig, sharpness: float = 1.0, noise: float = 0.0
) -> dict[str, Tensor]:
    """Return the weights by name, fp32; see `forerun.model.random_model`."""
    weights = arrays.random_weights(seed, config, sharpness, noise)
    return {name: torch.from_numpy(weight) for name, weight in weights.items()}


def stored_floats(name: str, weight: Tensor) -> StoredTensor:
    """Return a weight, fp32, as a checkpoint's tensor."""
    return arrays.stored_floats(name, weight.numpy())
