"""Drafters that run a trained network, and those that keep nothing but the target's last state for it.

B sequences, D width of the target, V' tokens of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.errors import ConfigError, check_least
from forerun.core.types import EMPTY_DRAFT, LAST_ROW, Draft, Outcome, Seq
from forerun.drafting.base import Drafter, DrafterBytes
from forerun.drafting.best_first import MAX_STEPS, DraftRequest, GuessTree, drafts_of
from forerun.drafting.networks.native import NativeNetwork
from forerun.drafting.tree_noise import noise_below
from forerun.weights.rtn import Scheme

if TYPE_CHECKING:
    from forerun._native import TextNGramModel

_BITS = {"none": 16, "int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Which trained network drafts, and how much it guesses."""

    model: str
    """A folder of `forerun train drafter`."""
    num_draft: int = 7
    """Nodes of a tree at most."""
    num_steps: int = 4
    """Steps of the network in a draft, at most: each expands a node."""
    min_chance: float = 0.1
    """Probability that a node is reached, at least."""
    quant: Scheme = "int4"
    """How the network's weights are rounded, none: to fp16; rows of the target's head stay as they are."""
    min_doubt: float = 0.2
    """With `recycling`: the network steps where that guess is needed and wrong with at least this probability."""

    @property
    def bits(self) -> int:
        """Return the bits of a weight of the network."""
        return _BITS[self.quant]

    def __post_init__(self) -> None:
        check_least("num_draft", self.num_draft, 1)
        if not 1 <= self.num_steps <= MAX_STEPS:
            raise ConfigError(f"num_steps must be 1 to {MAX_STEPS}, got {self.num_steps}")
        for name in ("min_chance", "min_doubt"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be 0 to 1, got {getattr(self, name)}")


def committed_rows(outcome: Outcome) -> tuple[int, ...]:
    """List the rows of a pass that are part of the text now: the root's, and those of the accepted nodes."""
    return (0, *(1 + i for i in outcome.path))[: len(outcome.emitted)]


class NetworkDrafter(Drafter):
    """Drafts with a trained network, alone or with an n-gram model of the texts; `_trees` runs the network."""

    takes_ngrams = True

    def __init__(self, options: NetworkOptions) -> None:
        self.options, self.max_nodes = options, options.num_draft

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence, its likeliest nodes first, in one call for all."""
        return self.propose_with(seqs, budgets, None)

    def propose_with(
        self, seqs: Sequence[Seq], budgets: Sequence[int], ngrams: TextNGramModel | None
    ) -> list[Draft]:
        """Guess one tree a sequence, blended with an n-gram model of the texts; None: the network alone."""
        num_nodes = [min(budget, self.options.num_draft) for budget in budgets]
        if not any(num_nodes):
            return [EMPTY_DRAFT for _ in seqs]
        request = DraftRequest(
            tokens=[seq.tokens[-1] for seq in seqs],
            num_nodes=num_nodes,
            num_steps=self.options.num_steps,
            min_chance=self.options.min_chance,
            min_doubt=self.options.min_doubt,
            ngrams=ngrams,
            noises=[noise_below(seq) for seq in seqs],
        )
        return drafts_of(self._trees(seqs, request))

    def _trees(self, seqs: Sequence[Seq], request: DraftRequest) -> list[GuessTree]:
        """Grow the trees of a request, to which the network's own inputs are added."""
        raise NotImplementedError


class LastStates(Drafter):
    """Keeps the target's last state of each sequence, as rows of a pass and which of them: none is copied."""

    features = LAST_ROW

    def __init__(self) -> None:
        self.states: dict[int, tuple[Floats, int]] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Keep the state after the prompt."""
        assert outcome.hidden is not None, "asked for by `features`"
        self.states[seq.id] = outcome.hidden[-1:].copy(), 0  # lets the other rows of the prompt go

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Keep the state of the last committed row, which predicted the target's own token."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            assert outcome.hidden is not None, "asked for by `features`"
            self.states[seq.id] = outcome.hidden, committed_rows(outcome)[-1]

    def end(self, seq: Seq) -> None:
        """Drop the sequence's state."""
        self.states.pop(seq.id, None)


class LastStateDrafter(LastStates, NetworkDrafter):
    """Drafts from the target's last state alone."""

    def __init__(self, options: NetworkOptions, network: NativeNetwork[Any], width: int) -> None:
        LastStates.__init__(self)
        NetworkDrafter.__init__(self, options)
        self.network, self.width = network, width

    def _trees(self, seqs: Sequence[Seq], request: DraftRequest) -> list[GuessTree]:
        last = [self.states[seq.id] for seq in seqs]
        request.states, request.rows = last[0][0], [last[0][1]]
        if len(seqs) > 1:
            request.states, request.rows = np.stack([states[row] for states, row in last]), None
        return self.network.draft(request)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the weights, and a state a sequence."""
        return DrafterBytes(self.network.nbytes(), tables=4 * num_seqs * self.width)
