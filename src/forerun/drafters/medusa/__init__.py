"""Medusa: small heads guess the next tokens from the target's last state, each one a token further.

A head sees the target's state and nothing else: not the tokens that are guessed before its own. So a pass over the
heads is cheap and can be wider than deep, and guesses get worse with depth sooner than those of a network that reads
them. The tree grows best first by the heads' own distributions, calibrated by depth, and the sampler's noise.

Source: Cai et al., arXiv 2401.10774.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.networks.method import NetworkMethod
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.medusa import files
from forerun.drafters.medusa.drafting import medusa_network

NETWORK = NetworkMethod("Medusa", ("medusa",), files, medusa_network, mark="medusa_num_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which heads, and how much they guess."""

    network = NETWORK

    model: str
    """A folder of `forerun train drafter --kind medusa`, or a published Medusa checkpoint as safetensors."""
    num_draft: int | None = None
    """Nodes of a tree at most; none: as many as pay, up to 15; 7 without the controller or within a memory budget."""
    min_chance: float | None = None
    """Probability that a node is reached, at least; none: 0.02, or 0.1 where `num_draft` is 7."""


build = NETWORK.build
METHOD = NETWORK.declared(
    Options, {"num_draft": (2, 3, 4, 5, 7, 9, 11), "num_steps": (1, 2, 3, 4, 5)}
)
