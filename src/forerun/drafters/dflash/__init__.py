"""DFlash and DSpark: a few layers behind the target fill a block of masked positions in one call.

The layers read hidden states of the target; what they fill in, each place with its own distribution, becomes a tree
that grows best first, by the sampler's noise where a request samples. The block is filled when a draft needs it first;
with DSpark each step after that adds what the token before says.

Sources: Chen et al., arXiv 2602.06036; Cheng et al., arXiv 2607.05147.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.method import NetworkMethod
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.dflash import files
from forerun.drafters.dflash.config import BlockConfig

if TYPE_CHECKING:
    from forerun import _native


def block_network(
    options: NetworkOptions, trained: TrainedNetwork[BlockConfig], target: Target
) -> SlotNetwork[_native.BlockNetwork]:
    """Make the kernels of the layers, `csrc/drafters/block_network.cpp`. Raises LoadError."""
    from forerun import _native

    c = trained.config
    num_tokens = c.vocab_size if trained.tokens is None else len(trained.tokens)
    kept = 4 * c.num_guesses * (num_tokens + c.hidden_size)  # what the head read and said
    kernels = _native.BlockNetwork
    return SlotNetwork(
        options, trained, target, kernels, "dflash", num_layers=len(c.windows), slot_nbytes=kept
    )


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
