"""MLP speculator: a small trained network guesses from the target's own last state, a token at a time.

The state that the target's head read last, and the token that came of it, go through a cell of one layer; the result
says which token may come next and is the state for the one after. There is no attention and no cache, so it costs
next to nothing to begin, and the state is forgotten with each pass. The head is made of rows of the target's own. The
tree grows best first by the network's own distribution, calibrated by depth, and the sampler's noise.

Sources: Wertheimer et al., arXiv 2404.19124; the LSTM's cell: Snowflake ArcticInference; trees by confidence: EAGLE-2,
arXiv 2406.16858.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.types import Draft, Features, Outcome, Seq
from forerun.drafters.mlp_speculator import files
from forerun.drafters.mlp_speculator.drafting import (
    NativeNetwork,
    TorchNetwork,
    new_network,
)
from forerun.drafters.mlp_speculator.head_map import HeadMap, new_learner
from forerun.drafting.base import DrafterBytes, Method, Target, as_given
from forerun.drafting.networks.drafter import LastStateDrafter, NetworkOptions, committed_rows
from forerun.drafting.networks.folder import UNTRAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    model: str = files.AUTO
    """A folder of `forerun train drafter`, a checkpoint of IBM or Snowflake; auto: what ships for the model."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        files.check_folder(self.model)  # a wrong one is refused before a model is loaded


def build(options: Options, target: Target) -> LastStateDrafter:
    """Read the network. Raises LoadError for one of another target, and naming a tensor that is wrong."""
    weights = files.read(options.model, target)
    network = new_network(weights, target.model, options.bits)
    width = target.model.config.hidden_size
    if target.learn and (learner := new_learner(weights, network, target)) is not None:
        return LearningDrafter(options, network, width, learner)
    return LastStateDrafter(options, network, width)


class LearningDrafter(LastStateDrafter):
    """Drafts, and lets its head learn from what was verified while no request runs."""

    features = Features(last=True, top_k=1)

    def __init__(
        self,
        options: Options,
        network: NativeNetwork | TorchNetwork,
        width: int,
        learner: HeadMap,
    ) -> None:
        super().__init__(options, network, width)
        self.learner = learner
        weakref.finalize(self, learner.keep)  # also when Python ends

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Take the state after the prompt, which is the first to learn from."""
        super().begin(seq, outcome)
        assert outcome.hidden is not None, "asked for by `features`"
        self.learner.saw(seq, outcome, [len(outcome.hidden) - 1])

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Take the state of the last committed row; learn from all committed ones."""
        super().observe(seqs, drafts, outcomes)
        for seq, outcome in zip(seqs, outcomes, strict=True):
            self.learner.saw(seq, outcome, committed_rows(outcome))

    def end(self, seq: Seq) -> None:
        """Drop the sequence's last state."""
        super().end(seq)
        self.learner.end(seq)

    def idle(self) -> bool:
        """Learn a little from what was verified; return whether there is more."""
        return self.learner.step()

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Add what the learner holds."""
        held = super().memory(num_seqs, max_len)
        return held._replace(tables=held.tables + self.learner.nbytes())


def example(target: Target) -> Options:
    """Choose a network of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0)


METHOD = Method(
    unshared=as_given,
    example=example,
    keeps=True,
    tune_when_named=True,  # few models have a network that ships; theirs is tried as part of `auto`
    ships_for=lambda target: files.shipped(target) is not None,
    grids={"num_draft": (2, 3, 4, 5, 7, 9, 11), "num_steps": (1, 2, 3, 4, 5, 6)},
)
