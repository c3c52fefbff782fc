"""`a+b`: the first drafter is asked in every step, the second where its guesses are worth their time.

For a first drafter that takes almost no time and often drafts nothing (`suffix`), and a second that takes time
and always has a draft (`draft_model`, `lookahead`). Who says where the second is asked is `choose`, which an engine
sets (`engine.controller`). What both draft is
one tree by chance (`_union`); drafts that were drawn stay as they are, and alone.

The choice depends on sizes and on the past, never on tokens that were drawn, so the output keeps its
distribution. Time must not change what a seed gives: a seeded request whose drafts are drawn
always has them from the part that draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from forerun.core.types import Draft, Seq
from forerun.drafters._pair import Pair
from forerun.drafters._rules import propose
from forerun.drafters._union import by_chance
from forerun.drafters.base import Drafter

EVEN = 0.5
"""The chance of a node of which its drafter says none."""

Choose = Callable[[Mapping[int, Draft]], Mapping[int, int]]
"""From the first's drafts, by sequence, how many nodes the second is asked for, as far as there is room."""


def where_empty(firsts: Mapping[int, Draft]) -> dict[int, int]:
    """As many as there is room for where the first drafts nothing."""
    return {i: 0 if len(draft) else sys.maxsize for i, draft in firsts.items()}


class Fallback(Pair):
    """Asks `first`, and `second` where `choose` says so."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        super().__init__(first, second)
        self.choose: Choose = where_empty
        self.places: dict[int, list[int]] = {}
        """Where the second was asked in the last step: the places of its nodes in the draft, -1 for those that the
        first had too."""

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """The first's drafts, with what the second adds where it is asked."""
        rooms = {seq.id: budget for seq, budget in zip(seqs, budgets, strict=True)}
        firsts = propose(self.first, seqs, budgets)
        drafts = {seq.id: _stated(draft) for seq, draft in zip(seqs, firsts, strict=True)}
        wanted = self._wanted(seqs, rooms, drafts)
        group = [seq for seq in seqs if wanted[seq.id]]
        seconds = propose(self.second, group, [wanted[seq.id] for seq in group]) if group else []
        self.places = {}
        for seq, second in zip(group, seconds, strict=True):
            first = drafts[seq.id]
            both = together(first, second).trim(rooms[seq.id])
            places = zip(second.places_in(first), second.places_in(both), strict=True)
            self.places[seq.id] = [-1 if known >= 0 else place for known, place in places]
            drafts[seq.id] = both
        return [drafts[seq.id] for seq in seqs]

    def _wanted(
        self, seqs: Sequence[Seq], rooms: Mapping[int, int], firsts: Mapping[int, Draft]
    ) -> dict[int, int]:
        """Nodes that the second may draft, by sequence."""
        drawn = {seq.id for seq in seqs if self.draws and _is_seeded(seq)}
        free = {i: draft for i, draft in firsts.items() if i not in drawn}
        wanted = {i: rooms[i] if self.second.draws else 0 for i in drawn}
        return wanted | {i: min(num, rooms[i]) for i, num in self.choose(free).items()}


def together(first: Draft, second: Draft) -> Draft:
    """One draft of two; the second where one of them was drawn, unless it is empty."""
    if not len(first) or not len(second):
        return second if len(second) else first
    if first.probs is not None or second.probs is not None:
        return second
    return by_chance(_stated(second), first)


def _stated(draft: Draft) -> Draft:
    """With the chances of its nodes."""
    if draft.confidence is not None or draft.probs is not None:
        return draft
    return replace(draft, confidence=(EVEN,) * len(draft))


def _is_seeded(seq: Seq) -> bool:
    return not seq.params.is_greedy and seq.params.seed is not None
