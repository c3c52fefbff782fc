"""`a++b++tables`: networks, models and tables grow one tree, each node asked of the cheapest that is likely to know it.

The tables are asked first, then the networks, then models: each where what was said before it is wrong, and the node
is reached, with a probability of at least its `min_doubt` (`csrc/drafters/growth.h`). Over 1,854 passes of SmolLM2 the
target's token was the likeliest of the table's in 34 %, of a recurrent network's in 40 %, of the mean's in 47 %.

A model's steps cost a part of the target's pass each, and it has to read the prompt first. So whether models take part
is asked for with each draft (`DraftModelUse`), and they read a few tokens a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.core.types import Draft, Outcome, Seq
from forerun.drafters.base.contract import Drafter, DraftModelUse
from forerun.drafters.base.networks.network import Network, grow
from forerun.drafters.base.union import Joint, Union, common_features

if TYPE_CHECKING:
    from forerun._native import PartnerValue, Trace

READ_ROWS = 64
"""Tokens of prompts that models read in a step of the target."""
REST_DRAFTS = 2000
"""Drafts without models after which their weights leave memory: a minute or less of drafting."""


class Cascade(Joint):
    """Grows one tree with networks and one drafter that has an n-gram model, or none."""

    def __init__(self, networks: Sequence[Network], tables: Drafter | None) -> None:
        from forerun import _native

        self.networks = sorted(networks, key=lambda each: each.is_model)  # stable
        self.tables = tables
        self.parts = [*networks, *([] if tables is None else [tables])]
        self.features = self.parts[0].features
        for part in self.parts[1:]:
            self.features = common_features(self.features, part.features)
        self.max_nodes = max(each.max_nodes for each in networks)
        self._values = {each: _native.PartnerValue(each.share, each.gain) for each in networks}
        self._said: dict[int, tuple[Trace, list[PartnerValue]]] = {}
        """What was said of each sequence in its last draft, and what those are worth who said it."""
        self.models = [each for each in self.networks if each.is_model]
        if self.models and len(self.parts) > len(self.models):
            self._num_unwanted = 0
            self.asking = DraftModelUse(step_cost=sum(model.step_cost for model in self.models))

    def num_unread(self, seq: Seq) -> int:
        """Count the tokens that the models have to read before they can be asked."""
        return sum(model.num_unread(seq) for model in self.models)

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence."""
        ngrams = None if self.tables is None else self.tables.ngram_model(seqs)
        asks = None if self.asking is None else self._asks(self.asking, seqs)
        doubts = []
        for network in self.networks:
            value = self._values[network]
            network.share = value.share
            cost = self.asking.cost if self.asking is not None and network.is_model else None
            doubts.append(value.doubt(network.options.min_doubt, cost))
        grown = grow(self.networks, seqs, budgets, ngrams, asks, doubts)
        if self.asking is not None:
            self.asking.num_steps = grown.num_model_steps
        values = [self._values[partner] for partner in grown.partners]
        for seq, said in zip(seqs, grown.said):
            self._said[seq.id] = said, values
        return grown.drafts

    def _asks(self, asking: DraftModelUse, seqs: Sequence[Seq]) -> list[bool]:
        """Let models be loaded and read where they are wanted; return of which sequences they draft."""
        wanted = asking.wanted or [True] * len(seqs)
        asks = [w and not self.num_unread(seq) for seq, w in zip(seqs, wanted, strict=True)]
        asking.load_s = sum(model.reload() for model in self.models) if any(wanted) else 0.0
        self._num_unwanted = 0 if any(wanted) else self._num_unwanted + 1
        if self._num_unwanted >= REST_DRAFTS:
            for model in self.models:
                model.offload()
        asking.num_read = 0
        for seq, is_wanted in zip(seqs, wanted, strict=True):
            room = READ_ROWS - asking.num_read
            if is_wanted and room > 0:
                unread = [model for model in self.models if model.num_unread(seq)]
                asking.num_read += sum(model.read(seq, room) for model in unread)
        return asks

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Pass the outcome to all. A network also takes more of the likeliest tokens than it needs: no copies."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            if (said := self._said.pop(seq.id, None)) is not None:
                trace, values = said
                trace.teach(outcome.emitted, values)
        for part in self.parts:
            part.observe(seqs, drafts, outcomes)

    def end(self, seq: Seq) -> None:
        """End the sequence in all drafters."""
        self._said.pop(seq.id, None)
        super().end(seq)


def united(parts: Sequence[Drafter]) -> Drafter:
    """Combine drafters: networks and the first tables to a cascade, others in pairs: `a++b++c` is `a++(b++c)`."""
    networks = [part for part in parts if isinstance(part, Network)]
    tables = next((part for part in parts if part.gives_ngrams), None)
    if len(networks) + (tables is not None) > 1 and networks:
        cascade = Cascade(networks, tables)
        parts = [part for part in parts if part not in cascade.parts] + [cascade]
    *others, drafter = parts
    for first in reversed(others):
        drafter = Union(first, drafter)
    return drafter
