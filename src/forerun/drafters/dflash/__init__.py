"""DFlash and DSpark: a few layers behind the target fill a block of masked positions in one call.

The layers read hidden states of the target; what they fill in, each place with its own distribution, becomes a tree
that grows best first, by the sampler's noise where a request samples. DSpark's places know the token before them.

Sources: Chen et al., arXiv 2602.06036; Cheng et al., arXiv 2607.05147.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.contract import Method, Target, as_given
from forerun.drafters.base.draft_head import cut_list
from forerun.drafters.base.networks.drafter import NetworkDrafter, NetworkOptions
from forerun.drafters.base.networks.folder import UNTRAINED
from forerun.drafters.base.networks.layered import Layout, is_gguf
from forerun.drafters.dflash import files, gguf
from forerun.drafters.dflash.drafting import BlockNetwork, BlockWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    model: str
    """A folder of z-lab, DeepSpec, LiquidAI, SpecForge or speculators, or a GGUF file of llama.cpp."""
    num_steps: int = 6
    """Places of a block that are guessed, and nodes that are expanded, at most."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        # a wrong one is refused before a model is loaded
        _layout(self.model).check_kind(self.model)


def build(options: Options, target: Target) -> NetworkDrafter:
    """Read the network. Raises LoadError for one of another target, and naming a tensor that is wrong."""
    weights = _layout(options.model).read(options.model, target)
    weights = weights.cut(cut_list(options.draft_vocab, target, weights.tokens))
    network = BlockNetwork(weights, target.model, target.max_num_seqs, target.max_len, options.bits)
    return NetworkDrafter(options, network)


def check(options: Options, target: Target) -> None:
    """Compare the sizes and the aux layers of a file with the target's. Raises LoadError."""
    _layout(options.model).check_target_of(options.model, target)


def _layout(model: str) -> Layout[BlockWeights]:
    return gguf if is_gguf(model) else files


def example(target: Target) -> Options:
    """Choose a network of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0)


METHOD = Method(
    check=check,
    unshared=as_given,
    example=example,
    grids={"num_draft": (3, 4, 5, 6, 8, 12), "num_steps": (2, 4, 6, 8, 12)},
)
