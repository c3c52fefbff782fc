"""A grammar for checks: a cycle of places, each of which allows some tokens; all, a few, or one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.core.structured import StructuredOutputsParams

CYCLE = (None, None, (7, 1, 2, 3), None, (5,), (4,), None, (1, 2, 3))
"""The tokens that a place allows; None allows all."""


@dataclass(frozen=True, slots=True)
class ToyGrammar:
    """What a place of the cycle allows."""

    vocab_size: int
    place: int = 0

    @classmethod
    def start(cls, wanted: StructuredOutputsParams) -> ToyGrammar:
        """The first place; the expression is the size of the vocabulary."""
        return cls(int(wanted.source))

    def allowed(self) -> NDArray[np.bool_] | None:
        """Mask (V,) of the tokens that may come next."""
        tokens = CYCLE[self.place]
        return None if tokens is None else np.isin(np.arange(self.vocab_size), tokens)

    def allows(self, token: int) -> bool:
        """Return what the mask says of one token."""
        tokens = CYCLE[self.place]
        return tokens is None or token in tokens

    def advance(self, token: int) -> ToyGrammar | None:
        """The next place; None if the token is not allowed."""
        if not self.allows(token):
            return None
        return replace(self, place=(self.place + 1) % len(CYCLE))

    def forced(self) -> list[int]:
        """The tokens up to the first place that allows another one."""
        found: list[int] = []
        for tokens in CYCLE[self.place :]:
            if tokens is None or len(tokens) > 1:
                break
            found += tokens
        return found
