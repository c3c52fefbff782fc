"""`a++b`: both drafters are asked in every step, and their trees are united: a shared path is drafted once.

Faster than either only where rows are cheap and the two look at different things.

Where both say what chance their nodes have, the tree is best first by them: a node that both guess has the larger of
its two chances, and places that one of them leaves empty are filled from the other (Graft, arXiv 2605.20104).
Otherwise the second's nodes come first and keep their order; the first's are hung below and beside them, as
many as the budget leaves. So the output keeps its distribution where the second draws its nodes: whether one of them
is there never depends on its token, and of two siblings with one token the drawn one stays, whose
rejection removes all of the point mass too (`decoding.verify`, rule two). Point masses may come and go.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core import tree
from forerun.core.errors import ConfigError
from forerun.core.types import Draft, Seq
from forerun.drafting.base import Drafter
from forerun.drafting.pair import Pair
from forerun.drafting.rules import propose


class Union(Pair):
    """Asks both drafters and unites their trees; the second's nodes are where they would be without the first's."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        if first.draws:
            raise ConfigError("only the last drafter of a union may draw its guesses: put it last")
        super().__init__(first, second)
        self.max_nodes = first.max_nodes + second.max_nodes  # where they share no path

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """One tree a sequence: the second's, with what the first adds to it."""
        firsts, seconds = (propose(part, seqs, budgets) for part in (self.first, self.second))
        return [
            (by_chance if _have_chances(draft, more) else unite)(draft, more).trim(budget)
            for draft, more, budget in zip(seconds, firsts, budgets, strict=True)
        ]


def unite(draft: Draft, more: Draft) -> Draft:
    """The first draft's nodes, then those of the second that are not in it.

    Without confidence: neither drafter's values describe this order of the nodes.

    >>> unite(Draft.chain([5, 6]), Draft.chain([5, 7]))
    Draft(tokens=(5, 6, 7), parents=(-1, 0, 0), probs=None, confidence=None)
    """
    if not len(draft) or not len(more):
        return draft if len(draft) else more
    tokens, parents = tree.graft(draft.tokens, draft.parents, more.tokens, more.parents)
    added = len(tokens) - len(draft)
    return Draft(tokens, parents, draft.probs and (*draft.probs, *[None] * added))


def by_chance(draft: Draft, more: Draft) -> Draft:
    """The nodes of both, the one that is likeliest to be reached first.

    >>> by_chance(Draft((5, 6), (-1, 0), None, (0.6, 0.2)), Draft((5, 8), (-1, -1), None, (0.5, 0.3)))
    Draft(tokens=(5, 8, 6), parents=(-1, -1, 0), probs=None, confidence=(0.6, 0.3, 0.2))
    """
    tokens, parents = tree.graft(draft.tokens, draft.parents, more.tokens, more.parents)
    chances = [0.0] * len(tokens)
    for part in (draft, more):
        places: list[int] = []
        for token, parent, p in zip(part.tokens, part.parents, part.confidence or (), strict=True):
            above = places[parent] if parent >= 0 else -1
            places.append(
                next(i for i, t in enumerate(tokens) if (t, parents[i]) == (token, above))
            )
            chances[places[-1]] = max(chances[places[-1]], p)
    reach = tree.path_products(parents, chances)
    order = sorted(range(len(tokens)), key=lambda i: -reach[i])  # stable: parents stay first
    new = {old: i for i, old in enumerate(order)} | {-1: -1}
    return Draft(
        tuple(tokens[i] for i in order),
        tuple(new[parents[i]] for i in order),
        None,
        tuple(chances[i] for i in order),
    )


def _have_chances(*drafts: Draft) -> bool:
    return all(draft.confidence is not None for draft in drafts if len(draft)) and any(
        map(len, drafts)
    )
