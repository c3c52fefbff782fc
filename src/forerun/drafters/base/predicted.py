"""A predicted output as a draft: what the user expects the answer to be, such as a file before a small change.

The answer is followed along the prediction. Where it leaves it, the last tokens are looked up further on. How much
is guessed at once doubles while all of it is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.core import tree
from forerun.core.types import Draft

MATCH = 3
"""Tokens that must be equal where the answer returns to the prediction."""
FIRST_LENGTH, MIN_LENGTH, MAX_LENGTH = 8, 2, 32
"""Tokens guessed at once."""


@dataclass(slots=True)
class PredictedText:
    """The predicted tokens and where the answer stands in them."""

    tokens: Sequence[int]
    accepted: int = 0
    """Predicted tokens that were verified and right."""
    rejected: int = 0
    """Predicted tokens that were verified and wrong."""
    _position: int | None = 0
    _last: int = 0
    _length: int = FIRST_LENGTH
    _num_read: int = 0
    _array: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._array = np.asarray(self.tokens, dtype=np.int64)

    def extend(self, draft: Draft, generated: Sequence[int], max_nodes: int) -> Draft:
        """Add the coming predicted tokens to a draft, to `max_nodes` nodes in all."""
        self._follow(generated)
        coming = self._coming()
        if not coming:
            return draft
        nodes = draft.tokens, draft.parents
        return Draft(*tree.graft(*nodes, coming, tree.chain(len(coming)))).trim(
            max(max_nodes, len(draft))
        )

    def learn(self, draft: Draft, path: Sequence[int]) -> None:
        """Count the accepted and rejected predicted nodes of a draft, and adapt the number of guesses."""
        children, node = tree.children(draft.parents), -1
        num_drafted = num_right = 0
        for token in self._coming():
            below = (c for c in children.get(node, ()) if draft.tokens[c] == token)
            if (child := next(below, None)) is None:
                break
            node, num_drafted, num_right = child, num_drafted + 1, num_right + (child in path)
        if not num_drafted:
            return
        self.accepted += num_right
        self.rejected += num_drafted - num_right
        all_right = num_right == num_drafted
        self._length = (
            min(2 * self._length, MAX_LENGTH) if all_right else max(num_right, MIN_LENGTH)
        )

    def _coming(self) -> tuple[int, ...]:
        if self._position is None:
            return ()
        return tuple(self.tokens[self._position :][: self._length])

    def _follow(self, generated: Sequence[int]) -> None:
        """Move on by the tokens that came; where they leave the prediction, look for the next position to return to."""
        for token in generated[self._num_read :]:
            at = self._position
            if at is not None and at < len(self.tokens) and self.tokens[at] == token:
                self._position = self._last = at + 1
            else:
                self._position = None
        self._num_read = len(generated)
        if self._position is None:
            ends = self._ends(generated[-MATCH:])
            after = int(ends.searchsorted(self._last, side="right"))
            self._position = int(ends[min(after, len(ends) - 1)]) if len(ends) else None

    def _ends(self, last: Sequence[int]) -> NDArray[np.intp]:
        """Return the positions after each occurrence of the last tokens: a search is cheaper than an index."""
        num_starts = len(self._array) - MATCH + 1
        if len(last) < MATCH or num_starts < 1:
            return np.empty(0, dtype=np.intp)
        equal = np.ones(num_starts, dtype=bool)
        for offset, token in enumerate(last):
            equal &= self._array[offset : offset + num_starts] == token
        return np.flatnonzero(equal) + MATCH
