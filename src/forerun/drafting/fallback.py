"""`a+b`: a drafts in every step; where b is asked, its draft takes the place of a's.

For a first drafter that takes almost no time and often drafts nothing (`suffix`), and a second that takes time
and always has a draft (`draft_model`, `lookahead`). Where the second is asked is a question of speed like all
others, which the engine's controller answers (`engine.policy`).

The choice depends on sizes and on the past, never on tokens that were drawn, so the output keeps its
distribution. Time must not change what a seed gives: a seeded request whose drafts are drawn
always has them from the part that draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from forerun.core.types import Draft, Seq
from forerun.drafting.base import Drafter
from forerun.drafting.pair import Pair
from forerun.drafting.rules import propose

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
        self.max_nodes = max(first.max_nodes, second.max_nodes)  # one of the two drafts is taken

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """The first's drafts, or the second's where it was asked and has one."""
        rooms = {seq.id: budget for seq, budget in zip(seqs, budgets, strict=True)}
        firsts = propose(self.first, seqs, budgets)
        drafts = {seq.id: draft for seq, draft in zip(seqs, firsts, strict=True)}
        drawn = {seq.id for seq in seqs if self.draws and _is_seeded(seq)}
        wanted = {i: rooms[i] if self.second.draws else 0 for i in drawn}
        wanted |= self.choose({i: draft for i, draft in drafts.items() if i not in drawn})
        if group := [seq for seq in seqs if wanted[seq.id]]:
            limits = [min(wanted[seq.id], rooms[seq.id]) for seq in group]
            for seq, draft in zip(group, propose(self.second, group, limits), strict=True):
                drafts[seq.id] = draft if len(draft) else drafts[seq.id]
        return [drafts[seq.id] for seq in seqs]


def _is_seeded(seq: Seq) -> bool:
    return not seq.params.is_greedy and seq.params.seed is not None
