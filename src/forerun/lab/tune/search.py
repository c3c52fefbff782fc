"""Finding the drafter and the options with the most expected tokens a second from one model on one machine.

Two kinds of facts are kept apart. What drafting brings (tokens, accepted nodes, rows) is counted by running prompts
with every draft in full, and is exact. What it costs is measured: passes in turns (by the caller, who owns the clock:
`lab/bench/kernels.py`), proposals against the pass of the same step, medians of both. The score of a setting is

    expected speed-up = tokens / (sum of the passes' costs + sum of the proposals' costs)

with costs in plain passes, those of one row, so that no noisy wall time decides. The controller has no part in it: it
leaves out drafts that are not worth their rows, so with it the result is better.

`grids` of a drafter's `METHOD` says which options are tried (`drafters/base/contract.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from forerun._native import CostCurve
from forerun.cli import tables
from forerun.core import options, registry
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.drafters.base.contract import FIXED_SIZE
from forerun.drafters.base.find import find, method_of
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine.controller import Fixed
from forerun.engine.engine import Engine
from forerun.engine.sequence import SequenceStep

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

GAIN = 1.005
"""The least gain of a change: costs are measured, with noise."""
PLAIN = "none"
_PATH = re.compile(r"[^=]*/")
"""The folders of a file that an option names."""


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """One drafted step of one sequence: what was accepted of its draft, and the seconds of drafting and of the pass."""

    is_first: bool
    num_drafted: int
    num_accepted: int
    num_rows: int
    draft_s: float
    pass_s: float


@dataclass(frozen=True, slots=True)
class Recorder(Fixed):
    """Grants everything, and writes down what came of it. One sequence at a time."""

    steps: list[DraftedStep] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def learn(
        self,
        steps: Sequence[SequenceStep],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int = 0,
    ) -> None:
        """Note the step, unless its pass also read the prompt."""
        if num_read:
            return
        for step in steps:
            is_first = step.seq.id not in self._seen
            num_own = min(step.num_drafted, len(step.draft))  # what a prediction adds is not
            accepted = len(step.outcome.path)
            self.steps.append(DraftedStep(is_first, num_own, accepted, num_rows, draft_s, pass_s))
            self._seen.add(step.seq.id)


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """Results of drafting in full with one setting on some prompts, one sequence at a time."""

    drafter: str
    """The setting, as `-d` takes it."""
    passes: int
    emitted: int
    drafted: int
    accepted: int
    rows: Mapping[int, int]
    """Passes by their number of rows."""
    pass_cost: float
    """Of all passes together, in plain passes."""
    draft_cost: float
    """Of all proposals together, in plain passes."""

    @classmethod
    def of(cls, drafter: str, steps: Sequence[DraftedStep], costs: CostCurve) -> DrafterFigures:
        """Count steps. A proposal costs the median of those of its size; a first one, which reads the prompt, of those.

        `costs` are of passes by their rows, in plain passes.
        """
        rows = Counter(step.num_rows for step in steps)
        alike: dict[int | None, list[float]] = {}
        for step in steps:
            # In plain passes of the moment, as the pass of the same step tells.
            cost = step.draft_s / step.pass_s * costs.v(step.num_rows) if step.pass_s else 0.0
            size = None if step.is_first else step.num_drafted
            alike.setdefault(size, []).append(cost)
        return cls(
            drafter,
            passes=len(steps),
            emitted=sum(1 + step.num_accepted for step in steps),
            drafted=sum(step.num_drafted for step in steps),
            accepted=sum(step.num_accepted for step in steps),
            rows=dict(sorted(rows.items())),
            pass_cost=sum(count * costs.v(num) for num, count in rows.items()),
            draft_cost=sum(len(each) * median(each) for each in alike.values()),
        )

    @property
    def tau(self) -> float:
        """Emitted tokens per pass of a sequence; plain decoding has 1."""
        return self.emitted / self.passes if self.passes else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def speedup(self) -> float:
        """The expected speed-up over plain decoding: that of always drafting in full."""
        cost = self.pass_cost + self.draft_cost
        return self.emitted / cost if cost else 1.0


@dataclass
class Autotune:
    """Scores settings, each once, and looks for every drafter's best."""

    new_engine: Callable[[str], Engine]
    """Builds the drafter of a setting over the loaded weights, without a controller."""
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    costs: CostCurve
    tried: dict[str, DrafterFigures] = field(default_factory=dict)

    def best_of(self, spec: DrafterSpec) -> DrafterFigures:
        """Climb along the drafter's `grids`; a union, or a drafter without them, is scored as it is."""
        if spec.parts:
            return self.figures(spec.text())
        given = options.build(find(spec.name).Options, spec.options)

        def figures(tried: DataclassInstance) -> DrafterFigures:
            return self.figures(options.format_spec(spec.name, tried))

        return figures(climb(given, method_of(spec.name).grids, lambda o: figures(o).speedup))

    def figures(self, drafter: str) -> DrafterFigures:
        """Return the figures of a setting, which is run once."""
        if drafter not in self.tried:
            self.tried[drafter] = self._measure(drafter)
        return self.tried[drafter]

    def _measure(self, drafter: str) -> DrafterFigures:
        engine = self.new_engine(drafter)
        engine.proposer.controller = recorder = Recorder(engine.config.draft_budget)
        # The seed: lookahead draws its first window.
        params = SamplingParams(temperature=0, max_tokens=self.max_tokens, seed=0)
        for prompt in tables.track(self.prompts, _PATH.sub("", drafter)):
            engine.add(prompt, params)
            while engine.has_work:
                engine.step()
        return DrafterFigures.of(drafter, recorder.steps, self.costs)


def climb(
    options: Options, grids: Mapping[str, Sequence[float]], score: Callable[[Options], float]
) -> Options:
    """Change one option at a time along its grid (ascending) as long as the score rises.

    An option that is not at its default was given, and stays.
    """
    defaults = {each.name: each.default for each in fields(options)}
    free = {
        name: grid
        for name, grid in grids.items()
        if defaults[name] is not MISSING and getattr(options, name) == defaults[name]
    }
    best, highest = options, score(options)
    has_moved = True
    while has_moved:
        has_moved = False
        for name, grid in free.items():
            for step in (1, -1):
                while (near := _neighbour(best, name, grid, step)) is not None:
                    reached = score(near)
                    if reached < highest * GAIN:
                        break
                    best, highest, has_moved = near, reached, True
    return best


def _neighbour(options: Options, name: str, grid: Sequence[float], step: int) -> Options | None:
    """The options with the next value of one of them; None at the grid's end, or if they do not go together."""
    value = getattr(options, name)
    if value is None:
        value = FIXED_SIZE._asdict()[name]
    further = [v for v in grid if v > value] if step > 0 else [v for v in grid if v < value][::-1]
    if not further:
        return None
    try:
        return replace(options, **{name: further[0]})
    except ConfigError:
        return None


def candidates() -> list[str]:
    """List the drafters whose `Options()` needs no arguments, but for those that are tuned only when named."""
    described = {
        name: options.describe(find(name).Options)
        for name in registry.names("drafters")
        if name != PLAIN and not method_of(name).tune_when_named
    }
    return [n for n, docs in described.items() if all(doc.default is not None for doc in docs)]


def winner(figures: Sequence[DrafterFigures]) -> str:
    """Return the setting with the highest score; `none` where no score is above 1."""
    best = max(figures, key=lambda each: each.speedup, default=None)
    return PLAIN if best is None or best.speedup <= 1 else best.drafter
