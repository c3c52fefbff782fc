"""EAGLE-3: one decoder layer behind the target guesses from three of its hidden states, a token at a time.

The states of a low, a middle and a high layer go, with the next token, through one layer with keys and values of its
own: rows with the target's states are kept, guessed rows only for the draft they belong to. The tree grows best first
by the network's own distribution, calibrated by depth, and the sampler's noise.

Sources: Li et al., arXiv 2503.01840; the two norms of EAGLE-3.1, arXiv 2605.09992; trees by confidence: EAGLE-2,
arXiv 2406.16858.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.method import NetworkMethod
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.eagle3 import files
from forerun.drafters.eagle3.config import Eagle3Config

if TYPE_CHECKING:
    from forerun import _native


def eagle_network(
    options: NetworkOptions, trained: TrainedNetwork[Eagle3Config], target: Target
) -> SlotNetwork[_native.EagleNetwork]:
    """Make the kernels of the layer, `csrc/drafters/eagle_network.cpp`. Raises LoadError."""
    from forerun import _native

    return SlotNetwork(options, trained, target, _native.EagleNetwork, "eagle3")


NETWORK = NetworkMethod("EAGLE-3", files.KINDS, files, eagle_network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    network = NETWORK

    model: str
    """A folder of `forerun train drafter`, one of SafeAILab, vLLM or speculators, or a GGUF file of llama.cpp."""
    num_draft: int = 8
    """Nodes of a tree at most."""


build = NETWORK.build
METHOD = NETWORK.declared(
    Options, {"num_draft": (2, 3, 4, 5, 6, 8), "num_steps": (1, 2, 3, 4, 5, 6)}
)
