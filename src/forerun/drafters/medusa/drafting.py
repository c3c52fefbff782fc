"""Medusa's heads that draft: head k guesses the token 1 + k after the next one.

All heads read the target's last state, so a depth's guesses are the same after all tokens: a step computes one head.

D width of the target, V' tokens of a head.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forerun.drafters.base.networks.native import NativeNetwork, TrainedNetwork
from forerun.drafters.medusa.config import MedusaConfig
from forerun.model.model import Model

if TYPE_CHECKING:
    from forerun import _native

MedusaWeights = TrainedNetwork[MedusaConfig]


def native_medusa(
    weights: MedusaWeights, model: Model, bits: int
) -> NativeNetwork[_native.MedusaNetwork]:
    """Make the kernels of Medusa's heads. Raises LoadError."""
    from forerun import _native

    shape = weights.config.medusa_num_heads, weights.config.medusa_num_layers
    return NativeNetwork(
        model,
        lambda target: _native.MedusaNetwork(target.runtime, target.native, *shape),
        weights.packed(_native_name, bits),
        eps=0.0,
        temperatures=weights.temperatures,
        takes_head=weights.config.target_head,
    )


def _native_name(name: str) -> str:
    """Name a tensor as the kernels do: of head k, `block.k.j` and `bias.k.j` of its block j, and `head.k`."""
    if (block := re.fullmatch(r"(\d+\.\d+)\.linear\.(weight|bias)", name)) is not None:
        return f"{'block' if block[2] == 'weight' else 'bias'}.{block[1]}"
    return f"head.{name.partition('.')[0]}"
