"""Verification: which drafted tokens the target accepts, and the target's own token after them.

Two rules, chosen per set of siblings, never per drafter:

1. All children of a node are point masses: take the token that plain decoding would take there, and
   descend if a child carries it. Greedy decoding always goes this way. A seeded result is the same
   for every drafter.
2. Some child was drawn from a distribution: accept each child in turn with min(1, target / draft);
   after a rejection, subtract the child's distribution from the target and renormalise (Leviathan
   et al., arXiv 2211.17192; for siblings SpecInfer, arXiv 2305.09781). If none is accepted, draw
   from what is left.

Either way the emitted tokens follow the target's distribution exactly; a bad draft costs time,
nothing else. Logits are processed only at the nodes the walk visits, under the grammar's state there.
Where a sequence ends is not looked at here: `stops` cuts the emitted tokens.

N nodes of the draft, V vocabulary, D width of the target's features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from forerun.core import tree
from forerun.core.random import Stream, uniform
from forerun.core.types import Draft, Outcome, Seq, TopK
from forerun.decoding.grammar import GrammarState
from forerun.decoding.processors import LogitsPipeline, draw

Probs = NDArray[np.float64]
Best = tuple[int, ...]
"""The target's likeliest token at each row, where that is all it takes."""
Timers = Callable[[str], AbstractContextManager[None]]


def verify(
    seq: Seq,
    draft: Draft,
    logits: Tensor | Best,
    pipeline: LogitsPipeline,
    *,
    hidden: Tensor | None = None,
    top: TopK | None = None,
    timers: Timers = lambda phase: nullcontext(),
) -> Outcome:
    """Walk down the draft from the root as far as the target agrees.

    `logits` (1 + N, V), raw fp32, are the target's at the root (row 0) and at node i (row 1 + i);
    they, `hidden` (1 + N, D) and `top` are handed on in the outcome. Where the pipeline needs only the
    likeliest token of each row, these will do in their place. `timers` time the phase "process".
    """
    if len(logits) != 1 + len(draft):
        raise ValueError(f"{len(logits)} rows of logits for a draft of {len(draft)} nodes")
    children = tree.children(draft.parents)
    walk = _Walk(seq, draft, logits, pipeline, timers)
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        node = walk.descend(node, children.get(node, []))
        if node is not None:
            path.append(node)
    if isinstance(logits, tuple):
        return Outcome(tuple(path), tuple(walk.emitted), best=logits, hidden=hidden, top=top)
    return Outcome(tuple(path), tuple(walk.emitted), logits, hidden, top=top)


@dataclass(slots=True)
class _Walk:
    """The way down one draft: the tokens chosen so far, and the choice at the next node."""

    seq: Seq
    draft: Draft
    logits: Tensor | Best
    pipeline: LogitsPipeline
    timers: Timers
    emitted: list[int] = field(default_factory=list)
    _generated: list[int] = field(init=False)
    _grammar: GrammarState | None = field(init=False)

    def __post_init__(self) -> None:
        # Where the likeliest tokens do, no text is looked at.
        self._generated = [] if isinstance(self.logits, tuple) else self.seq.generated
        self._grammar = self.pipeline.grammar_after(self._generated)

    def descend(self, node: int, children: Sequence[int]) -> int | None:
        """Choose the token after `node` and return the child that carries it, if one does."""
        if self._is_drawn(children):
            token, child = self._reject(node, children)
        else:
            token = self._choose(node)
            child = next((c for c in children if self.draft.tokens[c] == token), None)
        self.emitted.append(token)
        self._generated.append(token)
        if self._grammar is not None:
            self._grammar = self._grammar.advance(token)
            if self._grammar is None:
                return None  # the output ends here
        return child

    def _is_drawn(self, children: Sequence[int]) -> bool:
        probs = self.draft.probs
        if probs is None or self.pipeline.params.is_greedy:
            return False
        return any(probs[child] is not None for child in children)

    def _choose(self, node: int) -> int:
        """Rule one: the target's own choice."""
        row = self.logits[1 + node]
        if isinstance(row, int):
            return row
        with self.timers("process"):
            return self.pipeline.choose(row, self._generated, self._grammar)

    def _reject(self, node: int, children: Sequence[int]) -> tuple[int, int | None]:
        """Rule two: the first child that is accepted, or a token of what the target has left."""
        target = self._target(node)
        seed, position = self.pipeline.seed, self.seq.num_prompt + len(self._generated)
        for index, child in enumerate(children):
            token = self.draft.tokens[child]
            draft = self._drawn_from(child, len(target))
            u = uniform(seed, Stream.ACCEPT, position, index)
            if _is_accepted(token, u, target, draft):
                return token, child
            target = _subtract(target, draft)
        u = uniform(seed, Stream.TARGET, position)
        return draw(target, u), None

    def _target(self, node: int) -> Probs:
        """Return the target's distribution (V,) after `node`."""
        row = self.logits[1 + node]
        assert isinstance(row, Tensor), "a request that draws needs logits"
        with self.timers("process"):
            return _normalised(self.pipeline.probs(row, self._generated, self._grammar))

    def _drawn_from(self, child: int, width: int) -> Probs:
        """Return the distribution (width,) a child was drawn from; padded vocabularies differ in width."""
        given = None if self.draft.probs is None else self.draft.probs[child]
        row = np.zeros(width) if given is None else _normalised(given)[:width]
        if given is None:
            row[self.draft.tokens[child] : self.draft.tokens[child] + 1] = 1
        return row if len(row) == width else np.pad(row, (0, width - len(row)))


def _is_accepted(token: int, u: float, target: Probs, draft: Probs) -> bool:
    """Accept with probability min(1, target / draft), never a token that either excludes."""
    return token < len(target) and draft[token] > 0 and bool(u * draft[token] < target[token])


def _subtract(target: Probs, draft: Probs) -> Probs:
    """Subtract the draft's distribution after a rejection; if rounding leaves nothing, they were equal."""
    rest = np.maximum(target - draft, 0)
    total = rest.sum()
    return rest / total if total > 0 else target


def _normalised(row: Tensor) -> Probs:
    """Return the row in fp64 with sum 1: rounding in fp32 must not change the distribution."""
    wide: Probs = row.detach().cpu().numpy().astype(np.float64)
    wide /= wide.sum()
    return wide
