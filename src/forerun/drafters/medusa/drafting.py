"""Medusa's heads that draft: head k guesses the token 1 + k after the next one.

All heads read the target's last state, so a depth's guesses are the same after all tokens: a step computes one head.

D width of the target, V' tokens of a head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core.arrays import Floats, Ids
from forerun.drafters.medusa.config import MedusaConfig
from forerun.drafting.networks.native import (
    NativeStateNetwork,
    fill,
    load_errors,
    native_target,
    packed,
)
from forerun.model.model import Model


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """A configuration and its tensors by the names of `Medusa`."""

    config: MedusaConfig
    tensors: Mapping[str, Floats]
    tokens: Ids | None = None
    """The tokens of the heads (V',), ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)


class MedusaNetwork(NativeStateNetwork):
    """Drafts with the target's threads, a copy of the rows of its head.

    Raises LoadError naming the weight that is wrong, or for a target without native kernels.
    """

    def __init__(self, weights: MedusaWeights, model: Model, bits: int) -> None:
        from forerun import _native

        config, target = weights.config, native_target(model)
        with load_errors():
            network = _native.MedusaNetwork(
                target.runtime, target.native, config.medusa_num_heads, config.medusa_num_layers
            )
            fill(
                network,
                packed(
                    {_native_name(name): tensor for name, tensor in weights.tensors.items()},
                    weights.tokens,
                    bits,
                ),
                target,
                eps=0.0,
                temperatures=weights.temperatures,
                takes_head=config.target_head,
            )
        super().__init__(network)


def _native_name(name: str) -> str:
    """Name a tensor as the kernels do: of head k, `block.k.j` and `bias.k.j` of its block j, and `head.k`."""
    if (block := re.fullmatch(r"(\d+\.\d+)\.linear\.(weight|bias)", name)) is not None:
        return f"{'block' if block[2] == 'weight' else 'bias'}.{block[1]}"
    return f"head.{name.partition('.')[0]}"
