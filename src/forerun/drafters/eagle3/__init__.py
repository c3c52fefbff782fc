"""EAGLE-3: one decoder layer behind the target guesses from three of its hidden states, a token at a time.

The states of a low, a middle and a high layer go, with the next token, through one layer with keys and values of its
own: rows with the target's states are kept, guessed rows only for the draft they belong to. The tree grows best first
by the network's own distribution, calibrated by depth, and the sampler's noise.

Sources: Li et al., arXiv 2503.01840; the two norms of EAGLE-3.1, arXiv 2605.09992; trees by confidence: EAGLE-2,
arXiv 2406.16858.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.contract import Method, Target, as_given
from forerun.drafters.base.draft_head import cut_list
from forerun.drafters.base.networks.drafter import NetworkDrafter, NetworkOptions
from forerun.drafters.base.networks.folder import UNTRAINED
from forerun.drafters.base.networks.layered import Layout, is_gguf
from forerun.drafters.eagle3 import files, gguf
from forerun.drafters.eagle3.drafting import EagleNetwork, EagleWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    model: str
    """A folder of `forerun train drafter`, one of SafeAILab, vLLM or speculators, or a GGUF file of llama.cpp."""
    num_draft: int = 8
    """Nodes of a tree at most."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        # a wrong one is refused before a model is loaded
        _layout(self.model).check_kind(self.model)


def build(options: Options, target: Target) -> NetworkDrafter:
    """Read the network. Raises LoadError for one of another target, and naming a tensor that is wrong."""
    weights = _layout(options.model).read(options.model, target)
    weights = weights.cut(cut_list(options.draft_vocab, target, weights.tokens))
    network = EagleNetwork(weights, target.model, target.max_num_seqs, target.max_len, options.bits)
    return NetworkDrafter(options, network)


def check(options: Options, target: Target) -> None:
    """Compare the sizes and the aux layers of a file with the target's. Raises LoadError."""
    _layout(options.model).check_target_of(options.model, target)


def _layout(model: str) -> Layout[EagleWeights]:
    return gguf if is_gguf(model) else files


def example(target: Target) -> Options:
    """Choose a network of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0)


METHOD = Method(
    check=check,
    unshared=as_given,
    example=example,
    grids={"num_draft": (2, 3, 4, 5, 6, 8), "num_steps": (1, 2, 3, 4, 5, 6)},
)
