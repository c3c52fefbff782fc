"""DFlash and DSpark: a few layers behind the target fill a block of masked positions in one call.

The layers read hidden states of the target; what they fill in, each place with its own distribution, becomes a tree
that grows best first, by the sampler's noise where a request samples. DSpark's places know the token before them.

Sources: Chen et al., arXiv 2602.06036; Cheng et al., arXiv 2607.05147.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.networks.method import NetworkMethod
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.dflash import files
from forerun.drafters.dflash.drafting import block_network

NETWORK = NetworkMethod("a block drafter", files.KINDS, files, block_network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    network = NETWORK

    model: str
    """A folder of z-lab, DeepSpec, LiquidAI, SpecForge or speculators, or a GGUF file of llama.cpp."""
    num_steps: int = 6
    """Places of a block that are guessed, and nodes that are expanded, at most."""


build = NETWORK.build
METHOD = NETWORK.declared(
    Options, {"num_draft": (3, 4, 5, 6, 8, 12), "num_steps": (2, 4, 6, 8, 12)}
)
