"""MLP speculator: a small trained network guesses from the target's own last state, a token at a time.

The state that the target's head read last, and the token that came of it, go through a cell of one layer; the result
says which token may come next and is the state for the one after. There is no attention and no cache, so it costs
next to nothing to begin, and the state is forgotten with each pass. The head is made of rows of the target's own. The
tree grows best first by the network's own distribution, calibrated by depth, and the sampler's noise.

Sources: Wertheimer et al., arXiv 2404.19124; the LSTM's cell: Snowflake ArcticInference; trees by confidence: EAGLE-2,
arXiv 2406.16858.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.method import NetworkMethod
from forerun.drafters.base.networks.native import runs_networks
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.mlp_speculator import files
from forerun.drafters.mlp_speculator.drafting import recurrent_network

NETWORK = NetworkMethod(
    "a recurrent network",
    ("mlp_speculator",),
    files,
    recurrent_network,
    find=files.find,
    names=(files.AUTO,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    network = NETWORK

    model: str = files.AUTO
    """A folder of `forerun train drafter`, a checkpoint of IBM or Snowflake; auto: what `forerun tune` made for the
    model, or ships for it."""
    num_draft: int | None = None
    """Nodes of a tree at most; none: as many as pay, up to 15; 7 without the controller or within a memory budget."""
    min_chance: float | None = None
    """Probability that a node is reached, at least; none: 0.02, or 0.1 where `num_draft` is 7."""


def bundled_for(target: Target) -> bool:
    """Tell whether a network for the target ships or was made here, and it has the kernels that run it."""
    return runs_networks(target.model) and bool(files.fitting(target))


build = NETWORK.build
METHOD = NETWORK.declared(
    Options,
    {"num_draft": (2, 3, 4, 5, 7, 9, 11), "num_steps": (1, 2, 3, 4, 5, 6)},
    tune_when_named=True,  # few models have a network that ships; that is tried as part of `auto`
    bundled_for=bundled_for,
)
