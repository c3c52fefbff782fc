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

from forerun.drafters.base.contract import Method, Target, as_given
from forerun.drafters.base.draft_head import cut_list
from forerun.drafters.base.networks.drafter import NetworkDrafter, NetworkOptions
from forerun.drafters.base.networks.folder import UNTRAINED
from forerun.drafters.mlp_speculator import files
from forerun.drafters.mlp_speculator.drafting import native_recurrent
from forerun.model.backends.native import NativeDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    model: str = files.AUTO
    """A folder of `forerun train drafter`, a checkpoint of IBM or Snowflake; auto: what `forerun tune` made for the
    model, or ships for it."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        files.check_folder(self.model)  # a wrong one is refused before a model is loaded


def build(options: Options, target: Target) -> NetworkDrafter:
    """Read the network. Raises LoadError for one of another target, and naming a tensor that is wrong."""
    weights = files.read(options.model, target)
    weights = weights.cut(cut_list(options.draft_vocab, target, weights.tokens))
    return NetworkDrafter(options, native_recurrent(weights, target.model, options.bits))


def example(target: Target) -> Options:
    """Choose a network of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0)


def bundled_for(target: Target) -> bool:
    """Tell whether a network for the target ships or was made here, and it has the kernels that run it."""
    return isinstance(target.model, NativeDecoder) and bool(files.fitting(target))


METHOD = Method(
    unshared=as_given,
    example=example,
    tune_when_named=True,  # few models have a network that ships; that is tried as part of `auto`
    check=lambda options, target: files.check_target_of(options.model, target),
    bundled_for=bundled_for,
    grids={"num_draft": (2, 3, 4, 5, 7, 9, 11), "num_steps": (1, 2, 3, 4, 5, 6)},
)
