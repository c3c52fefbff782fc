"""`a++b++tables`: networks, models and tables grow one tree, each node asked of the cheapest that is likely to know it.

The tables are asked first, then the networks, then models: each where what was said before it is wrong, and the node
is reached, with a probability of at least its `min_doubt` (`csrc/drafters/growth.h`). Over 1,854 passes of SmolLM2 the
target's token was the likeliest of the table's in 34 %, of a recurrent network's in 40 %, of the mean's in 47 %.

A model's steps cost a part of the target's pass each, and it has to read the prompt first. So whether models take part
is asked for with each draft (`Asking`), and they read a few tokens a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.types import Draft, Outcome, Seq
from forerun.drafting.base import Asking, Drafter
from forerun.drafting.networks.drafter import NetworkDrafter, joint_drafts
from forerun.drafting.union import Joint, Union, common_features

READ_ROWS = 64
"""Tokens of prompts that models read in a step of the target."""


class Cascade(Joint):
    """Grows one tree with networks and one drafter that has an n-gram model, or none."""

    def __init__(self, networks: Sequence[NetworkDrafter], tables: Drafter | None) -> None:
        self.networks = sorted(networks, key=lambda each: each.network.is_model)  # stable: as given
        self.tables = tables
        self.parts = [*networks, *([] if tables is None else [tables])]
        self.features = self.parts[0].features
        for part in self.parts[1:]:
            self.features = common_features(self.features, part.features)
        self.max_nodes = max(each.max_nodes for each in networks)
        self.models = [each.network for each in self.networks if each.network.is_model]
        if self.models and len(self.parts) > len(self.models):
            self.asking = Asking(step_cost=sum(model.step_cost for model in self.models))

    def num_unread(self, seq: Seq) -> int:
        """Count the tokens that the models have to read before they can be asked."""
        return sum(model.num_unread(seq) for model in self.models)

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence."""
        ngrams = None if self.tables is None else self.tables.ngram_model(seqs)
        if self.asking is None:
            return joint_drafts(self.networks, seqs, budgets, ngrams)[0]
        wanted = self.asking.wanted or [True] * len(seqs)
        asks = [w and not self.num_unread(seq) for seq, w in zip(seqs, wanted, strict=True)]
        self.asking.num_read = 0
        for seq, is_wanted in zip(seqs, wanted, strict=True):
            if is_wanted and (room := READ_ROWS - self.asking.num_read) > 0:
                self.asking.num_read += self._read(seq, room)
        drafts, self.asking.num_steps = joint_drafts(
            self.networks, seqs, budgets, ngrams, asks, self.asking.min_doubt
        )
        return drafts

    def _read(self, seq: Seq, most: int) -> int:
        return sum(model.read(seq, most) for model in self.models if model.num_unread(seq))

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Pass the outcome to all. A network also takes more of the likeliest tokens than it needs: no copies."""
        for part in self.parts:
            part.observe(seqs, drafts, outcomes)


def united(parts: Sequence[Drafter]) -> Drafter:
    """Combine drafters: networks and the first tables to a cascade, others in pairs: `a++b++c` is `a++(b++c)`."""
    networks = [part for part in parts if isinstance(part, NetworkDrafter)]
    tables = next((part for part in parts if part.gives_ngrams), None)
    if len(networks) + (tables is not None) > 1 and networks:
        cascade = Cascade(networks, tables)
        parts = [part for part in parts if part not in cascade.parts] + [cascade]
    *others, drafter = parts
    for first in reversed(others):
        drafter = Union(first, drafter)
    return drafter
