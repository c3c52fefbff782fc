"""Breaking the engine on purpose, to see that the tests notice: `python -m tests.mutants NAME PYTEST_ARGS...`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from forerun.cache.slots import SlotCache
from forerun.core.batch import Segment
from forerun.decoding import verify
from tests import tiny


def accepting_everything(honest: Callable[..., int | None]) -> Callable[..., int | None]:
    """`_Walk.descend` that takes the first child whatever the target says."""

    def descend(self, node, children):
        child = honest(self, node, children)
        if child is None and children:
            child = children[0]
            self.emitted[-1] = self._generated[-1] = self.draft.tokens[child]
        return child

    return descend


def accept_everything() -> None:
    """Verify nothing."""
    verify._Walk.descend = accepting_everything(verify._Walk.descend)


def wrong_residual() -> None:
    """After a rejection, draw from the target as if nothing had been tried."""
    verify._subtract = lambda target, draft: target


def stale_rows() -> None:
    """Commit as many rows as were accepted, but not the ones that were: rejected siblings stay in their place."""
    honest = SlotCache.keep
    SlotCache.keep = lambda self, slot, path: honest(self, slot, range(len(path)))


def unmasked_siblings() -> None:
    """Let a node see every node before it."""

    def visible(self):
        if self.parents is None:
            return None
        return np.tril(np.ones((self.stop, self.stop), dtype=bool))[self.first :]

    Segment.visible = visible


def flat_positions() -> None:
    """Number a tree's rows one after the other instead of by their depth."""
    Segment.positions = lambda self: np.arange(self.base + self.first, self.base + self.stop)


MUTANTS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (accept_everything, wrong_residual, stale_rows, unmasked_siblings, flat_positions)
}

if __name__ == "__main__":
    tiny.BACKEND = "torch"  # its rows and masks are Python, and can be broken from here
    MUTANTS[sys.argv[1]]()
    sys.exit(pytest.main(sys.argv[2:]))
