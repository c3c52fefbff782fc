"""Two drafters, one tree: both are asked, and what they agree on is drafted once.

`_chain` lets one of two speak, this one both: a request may follow what it said before, which the
first knows, or go on as the second thinks, and one pass checks either. It can pay only where rows are
cheap and the two look at different things.

The second's nodes come first and keep their order; the first's are hung below and beside them, as
many as the budget leaves. That keeps the law where the second draws its nodes: whether one of them
is there never depends on its token, and of two siblings that agree the drawn one stays, whose
rejection takes all of the point mass with it (`decoding.verify`, rule two). Point masses may come and go.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.errors import ConfigError
from forerun.core.types import Draft, Seq
from forerun.drafters._pair import Pair
from forerun.drafters.base import Drafter


class Merge(Pair):
    """Asks both drafters and merges their trees; the second's own nodes are where they would be without the first's."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        if first.draws:
            raise ConfigError("only the last of merged drafters may draw its guesses: put it last")
        super().__init__(first, second)

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """One tree a sequence: the second's, with what the first adds to it."""
        firsts, seconds = self.first.propose(seqs, budgets), self.second.propose(seqs, budgets)
        return [
            merge(draft, more).trim(budget)
            for draft, more, budget in zip(seconds, firsts, budgets, strict=True)
        ]


def merge(draft: Draft, more: Draft) -> Draft:
    """The first draft's nodes, then those of the second that are not in it.

    Their order is not the order of what either says of its nodes, so nothing is said of them.

    >>> merge(Draft.chain([5, 6]), Draft.chain([5, 7]))
    Draft(tokens=(5, 6, 7), parents=(-1, 0, 0), probs=None, confidence=None)
    """
    if not len(draft) or not len(more):
        return draft if len(draft) else more
    tokens, parents = [*draft.tokens], [*draft.parents]
    places: dict[tuple[int, int], int] = {}
    for node, place in enumerate(zip(parents, tokens, strict=True)):
        places.setdefault(place, node)  # of two children with one token, the first
    nodes = {-1: -1}
    for node, (parent, token) in enumerate(zip(more.parents, more.tokens, strict=True)):
        place = (nodes[parent], token)
        if place not in places:
            places[place] = len(tokens)
            tokens.append(token)
            parents.append(place[0])
        nodes[node] = places[place]
    added = len(tokens) - len(draft)
    probs = None if draft.probs is None else (*draft.probs, *[None] * added)
    return Draft(tuple(tokens), tuple(parents), probs)
