"""Torch decoders with random weights, and their caches."""

from __future__ import annotations

import torch

from forerun.core.arrays import Floats
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.decoder import Decoder
from forerun.model.config import ModelConfig
from forerun.model.shapes import weight_shapes


def random_decoder(config: ModelConfig, seed: int = 0) -> Decoder:
    """A decoder with random weights; layer norms get biases."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        weights[name] = torch.randn(shape, generator=generator) * (0.3 if len(shape) == 2 else 1)
        if name.endswith(".decay"):  # states fade
            weights[name] = -0.1 * weights[name].abs()
        if config.norm == "layer" and "norm" in name:
            weights[f"{name}.bias"] = torch.randn(shape, generator=generator)
    return Decoder(config, weights)


class ArrayCache(TensorCache):
    """A torch cache that is written and read as NumPy arrays."""

    def write(self, layer: int, slot: int, start: int, k: Floats, v: Floats) -> None:  # type: ignore[override]
        super().write(layer, slot, start, torch.from_numpy(k), torch.from_numpy(v))

    def read(self, layer: int, slot: int, stop: int) -> tuple[Floats, Floats]:  # type: ignore[override]
        keys, values = super().read(layer, slot, stop)
        return keys.numpy(), values.numpy()
