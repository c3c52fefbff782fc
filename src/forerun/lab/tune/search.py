"""Finding the drafter and the options with the most expected tokens a second from one model on one machine.

Two kinds of facts are kept apart. What drafting brings (tokens, accepted nodes, rows) is counted by
running prompts with every draft in full, and is exact. What it costs is measured: passes in turns
at two contexts and batch sizes (by the caller, who owns the clock: `lab/bench/kernels.py`), proposals
against the pass of the same step, medians of both. The score of a setting is

    expected speed-up = tokens / (sum of the passes' costs + sum of the proposals' costs)

with costs in plain passes, so that no noisy wall time decides. The controller has no part in it: it
leaves out drafts that are not worth their rows, so with it the result is better.

`grids` or `tune` of the drafter's `METHOD` say which options are tried (`drafting/base.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from forerun.core import options, registry
from forerun.core.params import SamplingParams
from forerun.drafting.base import Options, Target
from forerun.drafting.find import find, method_of
from forerun.drafting.spec import DrafterSpec
from forerun.engine.controller import DraftResult, Fixed
from forerun.engine.engine import Engine
from forerun.lab.tune.climb import climb
from forerun.lab.tune.figures import DrafterFigures, PassTimes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CONTEXTS = (128, 512)
BATCHES = (1, 4)
WIDTHS = (1, 2, 4, 8, 16, 32)
"""Rows of a pass in all."""
USUAL_NUM_SETTINGS = 12
"""How many settings a search is expected to try: for the time that is left."""
OFTEN = 8
"""How often a size of draft must have been seen for a median of its own."""
PLAIN = "none"

Report = Callable[[str, int, int], None]
"""Shows progress: what is being done, how much is done, and how much there is, as far as is known."""


def shapes(longest: int) -> list[tuple[int, int, int]]:
    """The passes to time, of contexts that leave room below `longest`: (context, sequences, rows in all)."""
    room = longest - max(WIDTHS)
    contexts = sorted({max(1, min(context, room)) for context in CONTEXTS})
    return [(c, n, rows) for c in contexts for n in BATCHES for rows in WIDTHS if rows >= n]


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """One drafted step of one sequence: what was accepted of its draft, and the seconds of drafting and of the pass."""

    is_first: bool
    trial: DraftResult
    num_rows: int
    draft_s: float
    pass_s: float


@dataclass(frozen=True, slots=True)
class Recorder(Fixed):
    """Grants everything, and writes down what came of it. One sequence at a time."""

    steps: list[DraftedStep] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def learn(
        self, trials: Sequence[DraftResult], num_rows: int | None, draft_s: float, pass_s: float
    ) -> None:
        """Note the step, unless its pass also read the prompt."""
        if num_rows is None:
            return
        for trial in trials:
            is_first = trial.seq_id not in self._seen
            self.steps.append(DraftedStep(is_first, trial, num_rows, draft_s, pass_s))
            self._seen.add(trial.seq_id)


def figures_of(drafter: str, steps: Sequence[DraftedStep], times: PassTimes) -> DrafterFigures:
    """Counts of the steps, and their proposals' costs against the pass of the same moment."""
    trials = [step.trial for step in steps]
    later = [step for step in steps if not step.is_first]
    first = [_draft_cost(step, times) for step in steps if step.is_first]
    costs = _costs_by_size(later, times)
    nearest = {
        size: costs[min(costs, key=lambda known: abs(known - size))]
        for size in {step.trial.num_nodes for step in later}
    }
    total = sum(nearest[step.trial.num_nodes] for step in later)
    total += len(first) * median(first or [0.0])
    return DrafterFigures(
        drafter,
        passes=len(trials),
        emitted=sum(1 + len(trial.path) for trial in trials),
        drafted=sum(trial.num_nodes for trial in trials),
        accepted=sum(len(trial.path) for trial in trials),
        rows=dict(sorted(Counter(step.num_rows for step in steps).items())),
        draft_cost=costs,
        draft_total=round(total, 4),
        nodes=_nodes(trials),
    )


def _draft_cost(step: DraftedStep, times: PassTimes) -> float:
    """In plain passes of the moment, as the pass of the same step tells."""
    return step.draft_s / step.pass_s * times.cost(step.num_rows) if step.pass_s else 0.0


def _costs_by_size(steps: Sequence[DraftedStep], times: PassTimes) -> dict[int, float]:
    """Median costs of proposals by their nodes; sizes seen too seldom for one are left out."""
    found: dict[int, list[float]] = {}
    for step in steps:
        found.setdefault(step.trial.num_nodes, []).append(_draft_cost(step, times))
    often = {size: each for size, each in found.items() if len(each) >= OFTEN}
    if found and not often:
        everything = [cost for each in found.values() for cost in each]
        often = dict.fromkeys(found, everything)
    return {size: round(median(each), 5) for size, each in sorted(often.items())}


def _nodes(trials: Sequence[DraftResult]) -> tuple[tuple[float, float], ...]:
    """Of node i: the share of the drafts that had it, and the share of those in which it was accepted."""
    found = []
    for i in range(max((trial.num_nodes for trial in trials), default=0)):
        having = [trial for trial in trials if i < trial.num_nodes]
        accepted = sum(i in trial.path for trial in having)
        found.append((round(len(having) / len(trials), 4), round(accepted / len(having), 4)))
    return tuple(found)


@dataclass
class Autotune:
    """Scores settings, each once, and lets every drafter look for its best."""

    new_engine: Callable[[str], Engine]
    """Builds the drafter of a setting over the loaded weights, without a controller."""
    target: Target
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    times: PassTimes
    progress: Report = lambda what, done, total: None
    tried: dict[str, DrafterFigures] = field(default_factory=dict)
    _num_expected: int = 0
    """Settings to try in all, as far as is known."""

    def run(self, drafters: Sequence[DrafterSpec]) -> list[DrafterFigures]:
        """The best setting of each drafter, in the order given."""
        best = []
        for i, spec in enumerate(drafters):
            self._num_expected = len(self.tried) + USUAL_NUM_SETTINGS * (len(drafters) - i)
            best.append(self._best_of(spec))
        return best

    def figures(self, drafter: str) -> DrafterFigures:
        """What a setting showed: it is run once."""
        if drafter not in self.tried:
            self.tried[drafter] = self._measure(drafter)
        return self.tried[drafter]

    def _best_of(self, spec: DrafterSpec) -> DrafterFigures:
        """Search by its `tune` or its `grids`; a union, or a drafter without either, is scored as it is."""
        if spec.parts:
            return self.figures(spec.text())
        method, given = method_of(spec.name), options.build(find(spec.name).Options, spec.options)
        search = _Search(self, spec.name)
        return search.figures(method.best(self.target, given, search))

    def _measure(self, drafter: str) -> DrafterFigures:
        engine = self.new_engine(drafter)
        engine.proposer.controller = recorder = Recorder(engine.config.draft_budget)
        num_prompts, num_tried = len(self.prompts), len(self.tried)
        # The seed: lookahead draws its first window.
        params = SamplingParams(temperature=0, max_tokens=self.max_tokens, seed=0)
        total = num_prompts * max(self._num_expected, num_tried + 1)
        for i, prompt in enumerate(self.prompts):
            self.progress(drafter, num_prompts * num_tried + i, total)
            engine.add(prompt, params)
            while engine.has_work:
                engine.step()
        return figures_of(drafter, recorder.steps, self.times)


@dataclass(frozen=True, slots=True)
class _Search:
    """What the `tune` of one drafter is given."""

    autotune: Autotune
    drafter: str

    def figures(self, tried: DataclassInstance) -> DrafterFigures:
        return self.autotune.figures(options.format_spec(self.drafter, tried))

    def score(self, tried: DataclassInstance) -> float:
        return self.figures(tried).speedup(self.autotune.times)

    def climb(
        self, given: Options, grids: Mapping[str, Sequence[float]], *, grow: bool = False
    ) -> Options:
        return climb(given, grids, self.score, grow=grow)


def candidates() -> list[str]:
    """Every drafter whose `Options()` needs no arguments, but those that are tuned only when named."""
    described = {
        name: options.describe(find(name).Options)
        for name in registry.names("drafters")
        if name != PLAIN and not method_of(name).tune_when_named
    }
    return [n for n, docs in described.items() if all(doc.default is not None for doc in docs)]


def best_of(figures: Sequence[DrafterFigures], times: PassTimes) -> str:
    """The setting with the highest score; `none` where no score is above 1."""
    best = max(figures, key=lambda each: each.speedup(times), default=None)
    return PLAIN if best is None or best.speedup(times) <= 1 else best.drafter
