"""How often drafts are accepted, node by node: what the controller knows of a sequence, and of all of them.

Nodes are told apart by their index, not by their depth: a budget keeps a draft's first nodes, so an
index is what a budget buys, in a chain and in any tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

PRIOR_CASES = 1.5
"""Drafts of its own that a sequence needs to weigh as much as what all others showed."""
SEED_CASES = 16.0
"""Drafts that the shares of an earlier run count for."""


@dataclass(frozen=True, slots=True)
class DraftResult:
    """What became of one sequence's draft in one step."""

    seq_id: int
    num_nodes: int
    path: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    """What the step emitted."""


@dataclass(slots=True)
class Frequency:
    """How often something happened, recent cases first: each case counts `memory` times what the next one does."""

    cases: float = 0.0
    hits: float = 0.0

    def record(self, is_hit: bool, memory: float) -> None:
        """Count a case."""
        self.cases = self.cases * memory + 1
        self.hits = self.hits * memory + is_hit

    def given(self, prior: Frequency) -> float:
        """The share to expect, where `prior` is what others saw."""
        weight = PRIOR_CASES / prior.cases
        return (self.hits + weight * prior.hits) / (self.cases + PRIOR_CASES)


@dataclass(slots=True)
class NodeStats:
    """Node i of a draft: how often drafts that might have had it did, and how often it was accepted then."""

    drafted: Frequency = field(default_factory=Frequency)
    accepted: Frequency = field(default_factory=Frequency)


NO_STATS = NodeStats()


@dataclass(slots=True)
class AcceptanceStats:
    """What is known about each node of the drafts of one sequence, or of all.

    `optimism` cases in favour of a node are there before the first, so that one bad draft does not decide.
    """

    memory: float
    optimism: float = 0.0
    nodes: list[NodeStats] = field(default_factory=list)

    def seed(self, nodes: Sequence[tuple[float, float]]) -> None:
        """Begin with the shares of an earlier run: how often node i was drafted, and accepted then."""
        self.nodes = [
            NodeStats(*(Frequency(SEED_CASES, SEED_CASES * share) for share in shares))
            for shares in nodes
        ]

    def record(self, budget: int, result: DraftResult) -> None:
        """Learn one result."""
        hope = self.optimism
        for i in range(len(self.nodes), result.num_nodes):
            self.nodes.append(
                NodeStats(Frequency(hope, hope), Frequency(hope, hope * 0.5 ** (i + 1)))
            )
        path = {*result.path}
        for i, node in enumerate(self.nodes[:budget]):
            node.drafted.record(i < result.num_nodes, self.memory)
            if i < result.num_nodes:
                node.accepted.record(i in path, self.memory)
