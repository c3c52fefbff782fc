"""Medusa: small heads guess the next tokens from the target's last state, each one a token further.

A head sees the target's state and nothing else: not the tokens that are guessed before its own. So a pass over the
heads is cheap and can be wider than deep, and guesses get worse with depth sooner than those of a network that reads
them. The tree grows best first by the heads' own distributions, calibrated by depth, and the sampler's noise.

Source: Cai et al., arXiv 2401.10774.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.contract import Method, Target, as_given
from forerun.drafters.base.draft_head import cut_list
from forerun.drafters.base.networks.drafter import NetworkDrafter, NetworkOptions
from forerun.drafters.base.networks.folder import UNTRAINED
from forerun.drafters.medusa import files
from forerun.drafters.medusa.drafting import native_medusa


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which heads, and how much they guess."""

    model: str
    """A folder of `forerun train drafter --kind medusa`, or a published Medusa checkpoint as safetensors."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        files.check_folder(self.model)  # a wrong one is refused before a model is loaded


def build(options: Options, target: Target) -> NetworkDrafter:
    """Read the heads. Raises LoadError for those of another target, and naming a tensor that is wrong."""
    weights = files.read(options.model, target)
    weights = weights.cut(cut_list(options.draft_vocab, target, weights.tokens))
    return NetworkDrafter(options, native_medusa(weights, target.model, options.bits))


def example(target: Target) -> Options:
    """Choose heads of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0)


METHOD = Method(
    unshared=as_given,
    example=example,
    check=lambda options, target: files.check_target_of(options.model, target),
    grids={"num_draft": (2, 3, 4, 5, 7, 9, 11), "num_steps": (1, 2, 3, 4, 5)},
)
