"""How much to draft: the nodes to ask for and the nodes to keep, in every step, none included.

One objective. Every candidate node j of sequence i has a chance p_ij to be accepted (`chances`), every pass of r rows
and every question to the drafter a measured cost, pass(r) and ask(k) for k nodes, in plain passes (`core.costs`). Of n
sequences, those of speed-up s_i over plain decoding of late, the nodes K_i and questions k_i are taken that maximise

    sum_i s_i^-a sum_{j in K_i} p_ij  -  m w [ pass(n + sum_i |K_i|) - pass(n) + sum_i ask(k_i) ],
    w = sum_i s_i^(1 - a) / pass(n)

This is the gradient of the alpha-fair sum_i s_i^(1 - a) / (1 - a): a token of i adds s_i^-a to it, and time takes from
all. For one sequence it says: a node is kept if its chance exceeds what its row takes at the present speed.

A draft is cut before the pass, at the best of all cuts: nodes by descending chance per row along the concave envelope
of each draft, while the objective grows. How many nodes to ask for is decided before they are seen, by what the
first, second, ... node of late added to the objective.

What is not tried is not learned: larger questions and plain passes are tried for a fixed share of the time, the
exploration budget. What is cut is compared with the tokens that came all the same, at no cost.

Nothing here reads a clock or draws a number: the same measurements give the same choices. And none changes a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter

from forerun.core import tree
from forerun.core.costs import CostCurve
from forerun.core.means import MEMORY, DecayedMean
from forerun.core.types import Draft, Seq
from forerun.engine.acceptance import AcceptanceModel, Bias
from forerun.engine.controller import Controller, DraftResult
from forerun.engine.cut import best_cut
from forerun.engine.node_value import NodeValue
from forerun.engine.pace import Pace

FIRST_COSTS = {1: 1.0, 4: 1.15, 16: 2.0}
"""Cost of a pass by its rows until it is measured: nearly free up to four."""
ALPHA = 8
"""1 is proportional fairness, 2 the least mean waiting time; larger values look at the slowest sequence only."""
MARGIN = 1.25
"""m: the best of many estimates is overestimated."""
EXPLORATION = 0.008
MIN_EXPLORATION = 0.004
"""Share of the time for trials, and what it falls to while they gain nothing."""
RESERVE = 0.5
"""Plain steps in the exploration budget, at most and at first."""
TRIAL_STEPS = 2
"""A drafter's first draft after a pause is slow, it has to read what it missed."""
PLAIN_EVERY = 64
"""Steps after which a plain pass is worth a trial."""
_id = attrgetter("seq_id")


@dataclass(slots=True)
class SequenceEstimate:
    """The controller's state of one sequence; tokens and time in plain steps."""

    values: list[DecayedMean] = field(default_factory=list)
    tokens: float = 1 / (1 - MEMORY)
    time: float = 1 / (1 - MEMORY)
    weight: float = 1.0
    """Weight of a token in the objective, s_i^-a."""
    bias: Bias = field(default_factory=Bias)

    @property
    def speedup(self) -> float:
        """Recent speed-up over plain decoding in this batch."""
        return self.tokens / self.time

    def record(self, tokens: int, time: float) -> None:
        """Add the tokens and the time of a step."""
        self.tokens = self.tokens * MEMORY + tokens
        self.time = self.time * MEMORY + time
        self.weight = (self.time / self.tokens) ** ALPHA


class Policy(Controller):
    """Chooses what maximises expected tokens a second; `full` is the largest draft."""

    def __init__(self, full: int) -> None:
        self.full = full
        self.pass_cost = CostCurve(FIRST_COSTS)
        self.ask_cost = CostCurve()
        self.ask_cost.record(0, 0.0)  # until measured, a smaller draft costs less
        self._knows_asking = False
        self._acceptance = AcceptanceModel()
        self._value = NodeValue()
        self._states: dict[int, SequenceEstimate] = {}
        self._plan: dict[int, int] = {}
        self._granted: dict[int, int] = {}
        self._drafts: dict[int, tuple[Draft, list[float]]] = {}  # with their nodes' chances
        self._asked_before: frozenset[int] = frozenset()
        self._pace = Pace(self.pass_cost)
        self._since_plain = PLAIN_EVERY - 1  # the second pass is plain: the unit of all costs
        self._reserve, self._share = RESERVE, EXPLORATION
        self._trial_steps = 0

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """Return the best questions, or a trial."""
        before = self._states
        self._states = {seq.id: before.get(seq.id) or SequenceEstimate() for seq in seqs}
        lost = sum(state.speedup * state.weight for state in self._states.values())
        self._time = lost / self.pass_cost.predict(len(seqs))
        self._plan = {i: self._best_question(state) for i, state in self._states.items()}
        self._granted = self._plan | self._explore()
        return self._granted

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Keep the nodes that maximise the objective."""
        self._drafts, gains = {}, {}
        for i, draft in drafts.items():
            state = self._states[i]
            chances = self._acceptance.of(draft, state.bias)
            self._drafts[i] = draft, chances
            weight, reached = state.weight, tree.path_products(draft.parents, chances)
            gains[i] = [weight * chance for chance in reached]
        rows = len(self._states)
        costs = self.pass_cost.costs(rows, rows + sum(map(len, drafts.values())))
        kept = best_cut(gains, [MARGIN * self._time * cost for cost in costs])
        self._learn_values(gains, kept)
        return {i: draft.trim(kept[i]) for i, draft in drafts.items()}

    def learn(
        self, results: Sequence[DraftResult], num_rows: int | None, draft_s: float, pass_s: float
    ) -> None:
        """Update chances, costs, speeds and the exploration budget."""
        asked = [result for result in results if self._granted.get(result.seq_id)]
        if num_rows is not None:
            self._measure(asked, num_rows, draft_s, pass_s)
        for result in results:
            i = result.seq_id
            if i in self._drafts:
                self._acceptance.learn(*self._drafts[i], result.tokens, self._states[i].bias)
        if num_rows is not None:
            self._account(results, num_rows, draft_s)
        self._asked_before = frozenset(result.seq_id for result in asked)
        self._granted, self._drafts = {}, {}

    def _best_question(self, state: SequenceEstimate) -> int:
        """Return how many nodes add most, less what asking for them costs; none while that is unknown."""
        if not self._knows_asking:
            return 0
        values = accumulate(self._value.expected(state.values))
        costs = self.ask_cost.costs(1, self._value.num_nodes)
        time, best, most = self._time * MARGIN / state.weight, 0.0, 0
        for k, (value, cost) in enumerate(zip(values, costs, strict=True), 1):
            if (net := value - time * cost) > best:
                best, most = net, k
        return most if most < self._value.num_nodes else self.full

    def _explore(self) -> dict[int, int]:
        """Return a plain pass, or larger questions, if the exploration budget allows it."""
        if self._wants_plain:
            return dict.fromkeys(self._plan, 0)
        if self._reserve < 0 and not self._knows_asking:
            return dict.fromkeys(self._plan, 1)  # the smallest question tells what asking costs
        larger = {i: self._next(k) for i, k in self._plan.items()}
        if not self._trial_steps:
            if self._reserve < 0 or larger == self._plan:
                return {}
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        return larger

    @property
    def _wants_plain(self) -> bool:
        return self._reserve >= 0 and self._since_plain >= PLAIN_EVERY

    def _next(self, k: int) -> int:
        """Return twice as many nodes; all where that is as many as drafts have, or before any draft."""
        return 2 * k if 0 < 2 * k < self._value.num_nodes else self.full

    def _learn_values(self, gains: dict[int, list[float]], kept: dict[int, int]) -> None:
        """Learn what each node of a draft added; 0 for those that were not there or not kept."""
        if not gains:
            return
        num_seqs, rows = len(self._states), sum(kept.values())
        added = self.pass_cost.predict(num_seqs + rows) - self.pass_cost.predict(num_seqs)
        row = self._time * MARGIN * max(0.0, added) / max(rows, 1)
        longest = max(self._value.num_nodes, *map(len, gains.values()))
        for i, gain in gains.items():
            if not (asked := self._granted.get(i, 0)):
                continue
            state = self._states[i]
            nets = [(x - row) / state.weight for x in gain[: kept[i]]]
            nets += [0.0] * (min(longest, asked) - len(nets))
            self._value.learn(state.values, nets)

    def _measure(
        self, asked: Sequence[DraftResult], num_rows: int, draft_s: float, pass_s: float
    ) -> None:
        """Learn the costs, in units of the machine's present speed."""
        self._since_plain += 1
        is_plain, is_new = num_rows == len(self._granted), self._pace.is_new
        if not is_plain and is_new and self._since_plain == PLAIN_EVERY:
            return  # the first pass: its cost is not known
        if is_plain and not is_new:
            self._since_plain = 0
        self._pace.record(num_rows, pass_s)
        if not self._pace.unit_s or not asked:
            return
        if self._asked_before.issuperset(result.seq_id for result in asked):
            num_nodes = sum(len(self._drafts[i][0]) for i in map(_id, asked) if i in self._drafts)
            cost = draft_s / self._pace.unit_s / len(asked)
            self.ask_cost.record(round(num_nodes / len(asked)), cost)
            if not self._knows_asking:
                self._knows_asking, self._trial_steps = True, 0

    def _account(self, results: Sequence[DraftResult], num_rows: int, draft_s: float) -> None:
        """Add the step's tokens and time to each sequence, and a share of its time to the exploration budget.

        A trial takes out the time that went beyond what its tokens take at the present speed.
        """
        if not self._pace.unit_s or not self._states:
            return
        plain, questions = self.pass_cost.predict(len(self._states)), draft_s / self._pace.unit_s
        time = (questions + self.pass_cost.predict(num_rows)) / plain
        speedup = sum(state.speedup for state in self._states.values()) / len(self._states)
        emitted = 0
        for result in results:
            if (state := self._states.get(result.seq_id)) is not None:  # None: it begins
                emitted += 1 + len(result.path)
                state.record(1 + len(result.path), time)
        self._reserve += self._share * time
        if self._granted and self._granted != self._plan:
            lost = time - emitted / len(self._states) / speedup  # by a trial
            self._reserve -= lost
            if any(self._granted.values()):
                self._share = EXPLORATION if lost < 0 else max(MIN_EXPLORATION, self._share / 2)
        self._reserve = min(self._reserve, RESERVE)
