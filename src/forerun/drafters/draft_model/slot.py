"""A sequence's slot in a draft's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.core import tree
from forerun.core.batch import Segment
from forerun.drafters.base.draft_head import TextTokens


@dataclass(slots=True)
class Slot:
    """A sequence's slot in the draft's cache, and the rows computed above those committed there.

    The first `num_pending` of them are tokens that the cache lacked.
    """

    index: int
    text_tokens: TextTokens | None = None
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    num_pending: int = 0
    num_computed: int = 0

    def segment(self, base: int) -> Segment:
        """Return the rows that have not been computed yet, which then have been."""
        first, self.num_computed = self.num_computed, len(self.tokens)
        rows = tuple(self.tokens), tuple(self.parents)
        return Segment(self.index, base, *rows, first, certain=self.num_pending)

    def path_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the computed rows that are these tokens, one below the other, as far as there are any."""
        children = tree.children(self.parents[: self.num_computed])
        path: list[int] = []
        for token in tokens:
            below = children.get(path[-1] if path else -1, [])
            row = next((row for row in below if self.tokens[row] == token), None)
            if row is None:
                break
            path.append(row)
        return path
