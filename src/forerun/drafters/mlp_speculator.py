"""MLP speculator: a small trained network guesses from the target's own last state, a token at a time.

The state that the target's head read last, and the token that came of it, go through a cell of one layer; the result
says which token may come next and is the state for the one after. There is no attention and no cache, so it costs
next to nothing to begin, and the state is forgotten with each pass. The head is made of rows of the target's own. The
tree grows best first by the network's own distribution, calibrated by depth. Nothing is drawn.

Sources: Wertheimer et al., arXiv 2404.19124; the LSTM's cell: Snowflake ArcticInference; trees by confidence: EAGLE-2,
arXiv 2406.16858.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core.types import EMPTY_DRAFT, LAST_HIDDEN, Draft, Outcome, Seq
from forerun.drafters import _recurrent_files
from forerun.drafters._best_first import NetworkOptions, drafts_of
from forerun.drafters._guess_tree import AnyTextEvidence
from forerun.drafters._recurrent import AnyRecurrentNetwork, NativeNetwork, new_network
from forerun.drafters.base import BaseDrafter, DrafterBytes, Target

GRIDS = {"num_draft": (2, 3, 4, 5, 7, 9, 11), "num_steps": (1, 2, 3, 4, 5, 6)}
"""What `forerun autotune` tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    model: str
    """A folder of `forerun train drafter`, or an mlp_speculator checkpoint of IBM or Snowflake."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        _recurrent_files.check_folder(self.model)  # a wrong one is told before a model is loaded


def build(options: Options, target: Target) -> MLPSpeculatorDrafter:
    """Read the network. Raises LoadError for one of another target, and naming a tensor that is wrong."""
    weights = _recurrent_files.read(options.model, target)
    network = new_network(weights, target.model, options.bits)
    return MLPSpeculatorDrafter(options, network, target.model.config.hidden_size)


def example(target: Target) -> Options:
    """For `forerun check-drafter`: an untrained network."""
    return Options(model=_recurrent_files.UNTRAINED, num_draft=12, min_chance=0)


class MLPSpeculatorDrafter(BaseDrafter):
    """Keeps the target's last state of each sequence."""

    features = LAST_HIDDEN

    def __init__(self, options: Options, network: AnyRecurrentNetwork, width: int) -> None:
        self.options, self.network, self.width = options, network, width
        self.is_native = isinstance(network, NativeNetwork)
        self.states: dict[int, tuple[Tensor, int]] = {}
        """Rows of a pass, and which of them: nothing is copied until it is asked for."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """The state after the prompt."""
        assert outcome.hidden is not None, "asked for by `features`"
        self.states[seq.id] = outcome.hidden[-1:].clone(), 0  # not the whole prompt's rows

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """One tree a sequence, its likeliest nodes first, in one call for all."""
        return self.propose_beside(seqs, budgets, None)

    def propose_beside(
        self, seqs: Sequence[Seq], budgets: Sequence[int], beside: AnyTextEvidence | None
    ) -> list[Draft]:
        """With what is known of each text."""
        wanted = [min(budget, self.options.num_draft) for budget in budgets]
        if not any(wanted):
            return [EMPTY_DRAFT for _ in seqs]
        found = [self.states[seq.id] for seq in seqs]
        states, rows = found[0][0], [found[0][1]]
        if len(seqs) > 1:
            states = torch.stack([hidden[row] for hidden, row in found])
            rows = [*range(len(seqs))]
        tokens = [seq.tokens[-1] for seq in seqs]
        limits = (self.options.num_steps, self.options.min_chance, beside, self.options.min_doubt)
        return drafts_of(self.network.draft(states, tokens, wanted, *limits, rows))

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """The state of the last row that is committed: what the target's own token came of."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            assert outcome.hidden is not None, "asked for by `features`"
            row = (0, *(1 + i for i in outcome.path))[len(outcome.emitted) - 1]
            self.states[seq.id] = outcome.hidden, row

    def end(self, seq: Seq) -> None:
        """Forget the state."""
        self.states.pop(seq.id, None)

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """The weights, and a state a sequence."""
        return sum(self.memory(num_seqs, max_len))

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """`nbytes` by kind."""
        return DrafterBytes(self.network.nbytes(), tables=4 * num_seqs * self.width)
