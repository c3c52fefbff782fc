"""Breaking the engine on purpose, to see that the tests notice: `python -m tests.mutants NAME PYTEST_ARGS...`.

A name is one of `MUTANTS`, or `module:CONSTANT=value`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable

import numpy as np
import pytest

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.batch import Segment
from forerun.core.types import Draft, Outcome, Seq
from forerun.decoding.processors import LogitsPipeline
from forerun.decoding.verify import Best, verify
from forerun.engine import engine
from forerun.model.cache.base import KVCache
from tests import tiny


def accepting_everything(
    seq: Seq, draft: Draft, logits: Floats | Best, pipeline: LogitsPipeline, **given: object
) -> Outcome:
    """`verify`, but where the target disagrees, the first child is taken all the same."""
    honest = verify(seq, draft, logits, pipeline, **given)
    children = tree.children(draft.parents)
    path = [*honest.path]
    while below := children.get(path[-1] if path else -1):
        path.append(below[0])
    emitted = (*(draft.tokens[node] for node in path), honest.emitted[-1])
    return honest._replace(path=tuple(path), emitted=emitted)


def favouring_drafts(
    seq: Seq, draft: Draft, logits: Floats | Best, pipeline: LogitsPipeline, **given: object
) -> Outcome:
    """`verify`, but the noise of every drafted token is 1 larger."""
    if not isinstance(logits, tuple) and not seq.params.is_greedy and len(draft):
        logits = logits.copy()
        rows = [1 + parent for parent in draft.parents]
        logits[rows, [*draft.tokens]] += seq.params.temperature
    return verify(seq, draft, logits, pipeline, **given)


def accept_everything() -> None:
    """Verify nothing."""
    engine.verify = accepting_everything


def draft_changes_noise() -> None:
    """Make a drafted token likelier to be drawn."""
    engine.verify = favouring_drafts


def stale_rows() -> None:
    """Commit as many rows as were accepted, but not the ones that were: rejected siblings stay in their place."""
    honest = KVCache.keep
    KVCache.keep = lambda self, slot, path: honest(self, slot, range(len(path)))


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
    for f in (accept_everything, draft_changes_noise, stale_rows, unmasked_siblings, flat_positions)
}

CONSTANTS = {
    "forerun.core.costs": {
        "DECAY": (0.5,),
        "PRIOR_WEIGHT": (0.01, 1e6),
    },
    "forerun.engine.model_price": {
        "EXPLORATION": (0.0, 0.05),
        "RESERVE": (-1.0, 20.0),
    },
    "forerun.engine.controller": {
        "FIRST_VALUE": (0.0,),
        "MARGIN": (0.8, 1.0, 1.5, 2.0),
        "TRIAL_STEPS": (1,),
        "PLAIN_EVERY": (4, 10**9),
        "LAST_PASSES": (1,),
        "PLAIN_FIRST": (0,),
    },
}
"""What the controller knows without measuring, and values that would make it worse."""
CONSTANT_MUTANTS = [
    f"{module}:{name}={value}"
    for module, names in CONSTANTS.items()
    for name, values in names.items()
    for value in values
]


def set_constant(mutant: str) -> None:
    """Import a module with another value of one of its constants, before anything that uses it."""
    module, name, value = re.fullmatch(r"(.+):(.+)=(.+)", mutant).groups()
    for known in [*sys.modules]:
        if known.partition(".")[0] in ("forerun", "tests") and known != "forerun._native":
            del sys.modules[known]
    spec = importlib.util.find_spec(module)
    source, count = re.subn(
        rf"^{name} = .*$", f"{name} = {value}", spec.loader.get_source(module), flags=re.MULTILINE
    )
    assert count == 1, mutant
    assert module not in sys.modules
    sys.modules[module] = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), vars(sys.modules[module]))


NOT_BROKEN = 3
"""Exit code of a mutant that cannot be made; 1 is pytest's, of tests that fail."""

if __name__ == "__main__":
    try:
        if ":" in sys.argv[1]:
            set_constant(sys.argv[1])
        else:
            tiny.ON_TORCH = True  # its rows and masks are Python, and can be broken from here
            MUTANTS[sys.argv[1]]()
    except Exception:
        traceback.print_exc()
        sys.exit(NOT_BROKEN)
    sys.exit(pytest.main(sys.argv[2:]))
