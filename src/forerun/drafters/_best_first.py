"""The tree of a network that guesses a token at a time: the node that is likeliest to be reached is taken next.

The network steps over a node when it is taken, while there are steps left; sequences step side by side, so that a step
reads the weights once. The native networks have a twin (csrc/draft_network.cpp), which grows the same trees.

R rows of a step, at most one a sequence; k tokens that may follow.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from forerun.core.errors import ConfigError, check_least
from forerun.drafters._guess_tree import GuessTree

MAX_STEPS = 16
"""Steps of a draft."""
NUM_NEXT = 8
"""Tokens after a step that may become nodes."""


@dataclass(frozen=True, slots=True)
class Step:
    """A token that the network takes: of a sequence, after the step `parent` of the same one (-1: its first)."""

    sequence: int
    parent: int
    token: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Which network, and how much it guesses."""

    model: str
    """A folder of `forerun train drafter`."""
    num_draft: int = 7
    """Nodes of a tree at most."""
    num_steps: int = 4
    """Steps of the network in a draft at most: tokens after which it says what may come next."""
    min_chance: float = 0.05
    """Chance that a node is reached, at least."""
    bits: Literal[4, 8, 16] = 8
    """Bits of the network's weights; rows of the target's head keep theirs."""

    def __post_init__(self) -> None:
        check_least("num_draft", self.num_draft, 1)
        if not 1 <= self.num_steps <= MAX_STEPS:
            raise ConfigError(f"num_steps must be 1 to {MAX_STEPS}, got {self.num_steps}")
        if not 0 <= self.min_chance <= 1:
            raise ConfigError(f"min_chance must be 0 to 1, got {self.min_chance}")


TakeSteps = Callable[[int, Sequence[Step]], tuple[Tensor, Tensor]]
"""Takes the number of the step and the sequences' tokens; gives the likeliest next ones (R, k) and their chances."""


@dataclass(slots=True)
class _Growth:
    num_nodes: int
    next: Step | None
    reach: float = 1.0
    serial: int = 0
    nodes: list[tuple[int, int, float]] = field(default_factory=list)
    heap: list[tuple[float, int, int, int, float, int, int]] = field(default_factory=list)


def grow(
    tokens: Sequence[int],
    num_nodes: Sequence[int],
    num_steps: int,
    max_depth: int,
    min_chance: float,
    take_steps: TakeSteps,
) -> list[GuessTree]:
    """A tree below each sequence's last token: nodes that are reached with a chance of at least `min_chance`."""
    growths = [
        _Growth(wanted, Step(i, -1, token, 0) if wanted > 0 else None)
        for i, (token, wanted) in enumerate(zip(tokens, num_nodes, strict=True))
    ]
    for number in range(num_steps):
        active = [(growth, growth.next) for growth in growths if growth.next is not None]
        if not active:
            break
        ids, probs = take_steps(number, [step for _, step in active])
        for (growth, step), row, chances in zip(active, ids.tolist(), probs.tolist(), strict=True):
            _learn(growth, step, number, row, chances, min_chance)
            _take(growth, step.sequence, max_depth if number + 1 < num_steps else 0)
    trees = []
    for growth in growths:
        nodes, parents, found = zip(*growth.nodes, strict=True) if growth.nodes else ((), (), ())
        trees.append((nodes, parents, found))
    return trees


def _learn(
    growth: _Growth,
    step: Step,
    number: int,
    ids: Sequence[int],
    chances: Sequence[float],
    least: float,
) -> None:
    parent = len(growth.nodes) - 1
    for token, p in zip(ids, chances, strict=True):
        if not growth.reach * p >= least:
            break
        item = (-growth.reach * p, growth.serial, token, parent, p, number, step.depth + 1)
        heapq.heappush(growth.heap, item)
        growth.serial += 1


def _take(growth: _Growth, sequence: int, max_depth: int) -> None:
    """The likeliest nodes, until the network has to step over one or the tree is full."""
    growth.next = None
    while growth.heap and growth.next is None and len(growth.nodes) < growth.num_nodes:
        negative, _, token, parent, p, number, depth = heapq.heappop(growth.heap)
        growth.nodes.append((token, parent, p))
        growth.reach = -negative
        if depth < max_depth and len(growth.nodes) < growth.num_nodes:
            growth.next = Step(sequence, number, token, depth)
