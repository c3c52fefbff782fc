"""What a draft may be: nodes that the grammar forbids or that are too deep go, forced ones come.

A grammar is a state that is advanced token by token; `guidance.py` makes them. Where it allows one token alone, the
target must take it: such tokens are nodes of certainty one, and structure is read in one pass instead of one a token.
Neither changes a token of the output.

N nodes of the draft, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core import tree
from forerun.core.types import Draft


class GrammarState(Protocol):
    """What a grammar allows after some tokens. Immutable: the branches of a draft tree share their prefix."""

    def allowed(self) -> NDArray[np.bool_] | None:
        """Mask (V,) of the tokens that may come next, end tokens included; None allows all."""
        ...

    def allows(self, token: int) -> bool:
        """Return what the mask says of one token, which takes less than the mask."""
        ...

    def advance(self, token: int) -> GrammarState | None:
        """Return the state after one more token; None if the token is not allowed or ends the output."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the coming tokens that have no alternative, end tokens left out; empty if the next one has."""
        ...


class Compiling:
    """The state before the first token, while a thread compiles the grammar: a caller that needs it waits for that.

    Its methods raise what compiling raises.
    """

    def __init__(self, compiled: Future[Any], start: Callable[[Any], GrammarState]) -> None:
        self.compiled, self._start = compiled, start

    def is_ready(self, timeout_s: float = 0) -> bool:
        """Tell whether it is compiled, after waiting for at most so many seconds."""
        return bool(wait([self.compiled], timeout_s).done)

    @cached_property
    def state(self) -> GrammarState:
        """The state in whose place this is."""
        return self._start(self.compiled.result())

    def allowed(self) -> NDArray[np.bool_] | None:
        """Mask (V,) of the tokens that may come first."""
        return self.state.allowed()

    def allows(self, token: int) -> bool:
        """Return what the mask says of one token."""
        return self.state.allows(token)

    def advance(self, token: int) -> GrammarState | None:
        """Return the state after the first token; None if it is not allowed or ends the output."""
        return self.state.advance(token)

    def forced(self) -> Sequence[int]:
        """Return the first tokens that have no alternative."""
        return self.state.forced()


def limit(draft: Draft, max_depth: int, grammar: GrammarState | None) -> Draft:
    """Return the nodes of a draft that can be part of the output, in one walk.

    They are less than `max_depth` deep, the grammar allows them, and they do not end the output: an end is the target's
    own token.
    """
    depths, states = {-1: 0}, {-1: grammar}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        depth = depths.get(parent, max_depth)
        if depth >= max_depth:
            continue
        after = states[parent]
        if after is not None and (after := after.advance(token)) is None:
            continue
        depths[node], states[node] = depth + 1, after
    return draft.only([*depths][1:])


def with_forced(draft: Draft, state: GrammarState, room: int, max_depth: int) -> Draft:
    """Add the tokens that are forced at the root and on the way down through first children.

    The new nodes come last; the draft then has at most `room` nodes, unless it had more, and the new ones are not
    deeper than `max_depth` levels.
    """
    tokens, parents = [*draft.tokens], [*draft.parents]
    children = tree.children(parents)
    at: GrammarState | None = state
    node, coming = -1, deque[int]()
    for _ in range(max_depth):
        if at is None:
            break
        coming = coming or deque(at.forced())
        wanted = coming.popleft() if coming else None
        child = next((c for c in children.get(node, ()) if wanted in (None, tokens[c])), None)
        if child is None:
            if wanted is None or len(tokens) >= room:
                break
            child = len(tokens)
            tokens.append(wanted)
            parents.append(node)
        at, node = at.advance(tokens[child]), child
    if len(tokens) == len(draft):
        return draft
    return Draft(tuple(tokens), tuple(parents))
