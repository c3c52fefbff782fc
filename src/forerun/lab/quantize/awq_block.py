"""AWQ of one block: which matrices share input scales, and what absorbs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from forerun.lab.quantize.awq import Inputs, clip, search_scales
from forerun.lab.quantize.whole_block import READERS, Site
from forerun.model.config import ModelConfig
from forerun.weights.grid import Grid

MATRICES = tuple(name for readers in READERS.values() for name in readers)
_NEVER_CLIPPED = ("q", "k")


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Matrices whose inputs are multiplied by shared scales, and what is divided by them before: a norm, or rows."""

    site: Site
    source: str


def scale_groups(config: ModelConfig) -> Iterator[ScaleGroup]:
    """The groups of a block in which scaling changes nothing but rounding.

    Heads that share values cannot be scaled apart, and only a gated MLP or ReLU hands scales on.
    """
    yield ScaleGroup("attn", "attn_norm")
    if config.num_heads == config.num_kv_heads:
        yield ScaleGroup("o", "v")
    yield ScaleGroup("mlp", "mlp_norm")
    if config.gated_mlp or config.activation == "relu":
        yield ScaleGroup("down", "up")


def scale(
    config: ModelConfig, weights: dict[str, Tensor], inputs: dict[Site, Inputs], grid: Grid
) -> None:
    """Put the scales into the block's weights and inputs: the same function, easier to round."""
    for group in scale_groups(config):
        readers = [name for name in READERS[group.site] if name in weights]
        scales = search_scales([weights[name] for name in readers], inputs[group.site], grid)
        inputs[group.site] = inputs[group.site].divided(scales)
        for name in readers:
            weights[name] = weights[name] * scales
        for name in (group.source, f"{group.source}.bias"):
            if name in weights:
                tensor = weights[name]
                weights[name] = tensor / (scales[:, None] if tensor.dim() > 1 else scales)


def clipped(name: str, weight: Tensor, inputs: Inputs, grid: Grid) -> Tensor:
    """A scaled matrix with clipped ranges; q and k, whose products go through a softmax, keep theirs."""
    return weight if name in _NEVER_CLIPPED else clip(weight, inputs, grid)
