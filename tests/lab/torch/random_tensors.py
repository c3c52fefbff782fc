"""Weights of `forerun.model.random_model` as the torch decoder takes them."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.model.config import ModelConfig
from forerun.model.random_model import random_weights


def random_tensors(seed: int, config: ModelConfig, sharpness: float = 1.0) -> dict[str, Tensor]:
    """The weights by name, fp32."""
    weights = random_weights(seed, config, sharpness)
    return {name: torch.from_numpy(weight) for name, weight in weights.items()}
