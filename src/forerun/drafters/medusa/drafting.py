"""Medusa's heads that draft: head k guesses the token 1 + k after the next one.

All heads read the target's last state, so a depth's guesses are the same after all tokens: a step computes one head.

D width of the target, V' tokens of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.native import NativeNetwork
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.medusa.config import MedusaConfig

if TYPE_CHECKING:
    from forerun import _native


def medusa_network(
    options: NetworkOptions, trained: TrainedNetwork[MedusaConfig], target: Target
) -> NativeNetwork[_native.MedusaNetwork]:
    """Make the kernels of Medusa's heads. Raises LoadError."""
    from forerun import _native

    shape = trained.config.medusa_num_heads, trained.config.medusa_num_layers
    return NativeNetwork(
        options,
        target.model,
        lambda decoder: _native.MedusaNetwork(decoder.runtime, decoder.native, *shape),
        trained,
        eps=0.0,
        on_device=("medusa", *shape),
    )
