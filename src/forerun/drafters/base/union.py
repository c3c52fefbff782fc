"""`a++b`: both drafters make one tree in every step.

Networks grow it in one call with tables, in a `cascade`. The trees of others are united; that is faster than either
only where rows are cheap and the two look at different things. Where both state probabilities, the tree is best first
by them: a node that both guess has the larger of its two, and budget that one of them leaves is filled from the other
(Graft, arXiv 2605.20104). Otherwise the second's nodes come first and keep their order; the first's are hung below and
beside them, as many as the budget leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core import tree
from forerun.core.errors import ConfigError
from forerun.core.types import Draft, Features, Outcome, Seq
from forerun.drafters.base.contract import Drafter, DrafterBytes
from forerun.drafters.base.rules import check


class Joint(Drafter):
    """Several drafters that make one tree: all see each sequence."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Start the sequence in all drafters."""
        for part in self.parts:
            part.begin(seq, seen_by(part, outcome))

    def end(self, seq: Seq) -> None:
        """End the sequence in all drafters."""
        for part in self.parts:
            part.end(seq)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Add up the bytes of all, by kind."""
        parts = (part.memory(num_seqs, max_len) for part in self.parts)
        return DrafterBytes(*map(sum, zip(*parts, strict=True)))


class Union(Joint):
    """Asks both drafters, and passes the outcome of their joint draft to both."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = self.parts = first, second
        self.features = common_features(first.features, second.features)
        self.max_nodes = first.max_nodes + second.max_nodes  # where they share no path

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Draft one tree a sequence from both."""
        drafts = [part.propose(seqs, budgets) for part in self.parts]
        for part, proposed in zip(self.parts, drafts, strict=True):
            check(part, proposed, budgets)  # a wrong one is named, not what uniting it raises
        return [unite(*pair).trim(n) for *pair, n in zip(*reversed(drafts), budgets, strict=True)]

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Pass the outcome to both."""
        for part in self.parts:
            part.observe(seqs, drafts, [seen_by(part, each) for each in outcomes])


def common_features(first: Features, second: Features) -> Features:
    """Return the features of a pass that serve both. Raises ConfigError if they need different layers."""
    wanted = {(f.last, f.layers) for f in (first, second)} - {(False, ())}
    if len(wanted) > 1:
        raise ConfigError("these drafters want to see different layers of the model: choose one")
    last, layers = wanted.pop() if wanted else (False, ())
    top_k = max(first.top_k, second.top_k)
    reading = [f for f in (first, second) if f.last or f.layers]
    return Features(
        last,
        layers,
        whole_prompt=first.whole_prompt or second.whole_prompt,
        last_row=bool(reading) and all(f.last_row for f in reading),
        top_k=top_k,
    )


def unite(draft: Draft, more: Draft) -> Draft:
    """Take the nodes of both: by the probability of their paths where both state one, else the first draft's first.

    Where one states none, neither's describe the order of the nodes.

    >>> unite(Draft.chain([5, 6]), Draft.chain([5, 7]))
    Draft(tokens=(5, 6, 7), parents=(-1, 0, 0), confidence=None)
    >>> unite(Draft((5, 6), (-1, 0), (0.6, 0.2)), Draft((5, 8), (-1, -1), (0.5, 0.3)))
    Draft(tokens=(5, 8, 6), parents=(-1, -1, 0), confidence=(0.6, 0.3, 0.2))
    """
    tokens, parents = tree.graft(draft.tokens, draft.parents, more.tokens, more.parents)
    if any(part.confidence is None for part in (draft, more) if len(part)):
        return Draft(tokens, parents)
    index = {key: i for i, key in enumerate(zip(tokens, parents, strict=True))}
    probabilities = [0.0] * len(tokens)
    for part in (draft, more):
        nodes: list[int] = []
        for token, parent, p in zip(part.tokens, part.parents, part.confidence or (), strict=True):
            nodes.append(index[token, nodes[parent] if parent >= 0 else -1])
            probabilities[nodes[-1]] = max(probabilities[nodes[-1]], p)
    paths = tree.path_products(parents, probabilities)
    order = sorted(range(len(tokens)), key=lambda i: -paths[i])  # stable: parents stay first
    new = {old: i for i, old in enumerate(order)} | {-1: -1}
    return Draft(
        tuple(tokens[i] for i in order),
        tuple(new[parents[i]] for i in order),
        tuple(probabilities[i] for i in order),
    )


def seen_by(part: Drafter, outcome: Outcome) -> Outcome:
    """Return an outcome with only as many of the likeliest tokens as the drafter's `features` have."""
    k = part.features.top_k
    if outcome.top is None or k == outcome.top.ids.shape[1]:
        return outcome
    return outcome._replace(top=outcome.top.part(range(len(outcome.top.ids)), k) if k else None)
