"""Medusa's heads that draft: head k guesses the token 1 + k after the next one.

All heads read the target's last state, so a depth's guesses are the same after all tokens: a step computes one head.

D width of the target, V' tokens of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.native import NativeNetwork
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.medusa.config import MedusaConfig

if TYPE_CHECKING:
    from forerun import _native


def medusa_network(
    trained: TrainedNetwork[MedusaConfig], target: Target, bits: int
) -> NativeNetwork[_native.MedusaNetwork]:
    """Make the kernels of Medusa's heads. Raises LoadError."""
    from forerun import _native

    shape = trained.config.medusa_num_heads, trained.config.medusa_num_layers
    return NativeNetwork(
        target.model,
        lambda decoder: _native.MedusaNetwork(decoder.runtime, decoder.native, *shape),
        trained,
        bits,
        eps=0.0,
    )
