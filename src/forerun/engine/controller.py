"""How much to draft: the budget of every sequence in every step, zero included.

A budget of k keeps a draft's first k nodes. With n sequences, budgets k_i, and the chance p_ij that node j
of a draft of sequence i comes to be drafted (d_ij) and is then accepted (a_ij), the budgets chosen maximise
expected tokens over expected time of the step:

    (n + sum_i sum_{j < k_i} d_ij a_ij) / (pass(n + r) + draft(r)),    r = sum_i sum_{j < k_i} d_ij

whatever the shape of the trees. All of it is measured while the engine runs: the costs by size
(`core.costs`), the chances by sequence and node (`acceptance`). As the batch grows, rows cost more and
budgets shrink by themselves. The source of the rule is the goodput of Liu et al. (arXiv 2406.14066).

Drafts that carry confidences need no such budget: sequences are asked in full or not at all, and what
comes is cut before the pass (`trimmer`).

For the others, what is not tried is not learned, so larger budgets are tried again now and then. Trials may
cost a small share of the running time, the exploration budget; the share is halved after every trial that
gained nothing: a cheap drafter is tried often, an expensive useless one seldom.

Nothing here reads a clock or draws a number: the same measurements give the same budgets. And no budget
changes a token: a draft may always be smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from forerun.core.costs import CostCurve
from forerun.core.types import Draft, Seq
from forerun.engine.acceptance import NO_STATS, AcceptanceStats, DraftResult
from forerun.engine.envelope import Increment, concave_envelope
from forerun.engine.prior import Prior
from forerun.engine.trimmer import Trimmer

MEMORY_OF_ONE = 0.95
MEMORY_OF_ALL = 0.99
"""What a draft counts for after one more: for its own sequence, and for sequences yet unknown."""
MARGIN = 1.03
"""Gain that a new plan must be expected to bring: plans are made of noisy measurements."""
HOLD_STEPS = 2
"""Steps a plan stands while the same sequences run."""
PLAIN_EVERY = 64
"""Steps after which the plain pass, which everything is compared with, is measured anew."""
PLAIN_FIRST = 2
"""Plain passes before anything is drafted."""
TRIAL_STEPS = 2
"""Steps of a trial: a drafter's first draft after a pause is slow, it has to read what it missed."""
EXPLORATION_SHARE = 0.015
MIN_EXPLORATION_SHARE = 0.0025
"""Share of the running time that trials may cost, at first and at least."""
SPEED_MEMORY = 0.2
"""Weight of the last pass in the estimate of the machine's present speed."""


class Controller(Protocol):
    """Says how much to draft, and is told what came of it."""

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """Nodes that each sequence may draft in the coming step, by its id."""
        ...

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """What of these drafts is verified, by sequence: all unless a controller says otherwise."""
        return drafts

    def learn(
        self, results: Sequence[DraftResult], num_rows: int | None, draft_s: float, pass_s: float
    ) -> None:
        """The step is over. `num_rows` is None if its pass also read prompts: its time is not used then."""
        return


@dataclass(frozen=True, slots=True)
class Fixed(Controller):
    """The same budget for every sequence, always: for comparisons."""

    budget: int

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """The budget."""
        return {seq.id: self.budget for seq in seqs}


class Adaptive(Controller):
    """Chooses the budgets with the most expected tokens a second; `full` is the largest."""

    def __init__(self, full: int, *, keeps_seeds: bool = False, prior: Prior | None = None) -> None:
        """`keeps_seeds`: the drafter draws its drafts, so the tokens of a seeded request depend on their size.

        Such requests always draft in full: the same seed must give the same tokens. `prior` is what
        an earlier run measured.
        """
        self.full = full
        self.keeps_seeds = keeps_seeds
        prior = prior or Prior()
        self.pass_cost = CostCurve(prior.pass_cost.points)
        self.draft_cost = CostCurve(prior.draft_cost.points)
        self.draft_cost.record(0, 0.0)  # until measured, a smaller draft costs less
        self._trimmer = Trimmer(self.pass_cost)
        self._bound: frozenset[int] = frozenset()
        self._all = AcceptanceStats(MEMORY_OF_ALL, optimism=1.0)
        self._all.seed(prior.nodes[:full])
        self._each: dict[int, AcceptanceStats] = {}
        self._unit_s = 0.0  # the machine's speed: seconds of a unit of cost
        self._plan: dict[int, int] = {}
        self._granted: dict[int, int] = {}
        self._asked_before: frozenset[int] = frozenset()
        self._steps_held = 0
        self._plain_passes = self._steps_since_plain = 0
        self._trial_of = -1
        self._trial_steps = 0
        self._exploration_budget = 0.0
        self._exploration_share = EXPLORATION_SHARE

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """The plan, a trial, or none to measure the plain pass; all for requests whose seed binds them."""
        self._trimmer.follow(seq.id for seq in seqs)
        drawn = (s for s in seqs if self.keeps_seeds and not s.params.is_greedy)
        self._bound = frozenset(seq.id for seq in drawn if seq.params.seed is not None)
        free = [seq.id for seq in seqs if seq.id not in self._bound]
        self._granted = dict.fromkeys(self._bound, self.full) | self._choose(free)
        return self._granted

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Cut the drafts that carry confidences, except where a seed binds the request."""
        free = {i: draft for i, draft in drafts.items() if i not in self._bound}
        return drafts | self._trimmer.trim(free)

    def learn(
        self, results: Sequence[DraftResult], num_rows: int | None, draft_s: float, pass_s: float
    ) -> None:
        """Update acceptance, costs and the exploration budget."""
        tried = [result for result in results if self._granted.get(result.seq_id)]
        for result in tried if not self._trimmer.is_confident else ():
            stats = self._each.setdefault(result.seq_id, AcceptanceStats(MEMORY_OF_ONE))
            stats.record(self._granted[result.seq_id], result)
            self._all.record(self._granted[result.seq_id], result)
        if num_rows is not None:
            self._measure(tried, num_rows, draft_s, pass_s)
        self._trimmer.learn(results, *self._costs(len(tried), num_rows, draft_s, pass_s))
        self._charge(tried, draft_s, pass_s)
        self._asked_before = frozenset(result.seq_id for result in tried)
        self._granted = {}

    def _choose(self, ids: list[int]) -> dict[int, int]:
        off = dict.fromkeys(ids, 0)
        if self._plain_passes < PLAIN_FIRST or self._steps_since_plain >= PLAIN_EVERY:
            return off
        if self._plan.keys() != off.keys():
            self._each = {i: stats for i, stats in self._each.items() if i in off}
            self._plan = {i: self._plan.get(i, 0) for i in ids}
            self._steps_held = HOLD_STEPS
        if self._trimmer.is_confident:
            self._plan = off | dict.fromkeys(self._trimmer.wanted(ids), self.full)
            return self._plan | self._trial()
        self._steps_held += 1
        if self._steps_held >= HOLD_STEPS:
            self._steps_held = 0
            self._plan = self._improve(self._plan)
        return self._plan | self._trial()

    def _trial(self) -> dict[int, int]:
        """A larger budget for the next sequence in turn, if the exploration budget allows it."""
        smaller = [i for i, budget in self._plan.items() if budget < self.full]
        if self._trial_of not in smaller or not self._trial_steps:
            if self._exploration_budget < 0 or not smaller:
                self._trial_steps = 0
                return {}
            self._trial_of = min((i for i in smaller if i > self._trial_of), default=smaller[0])
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        self._steps_held = HOLD_STEPS  # plan anew after it
        return {self._trial_of: self._next(self._plan[self._trial_of])}

    def _next(self, budget: int) -> int:
        """The budget to try above one: twice as much; everything before any draft was seen."""
        if self._trimmer.is_confident:
            return 1
        known = len(self._all.nodes)
        return max(1, 2 * budget) if known and 2 * budget < known else self.full

    def _improve(self, plan: dict[int, int]) -> dict[int, int]:
        """The best plan if it is clearly better than the present one and than none."""
        off = dict.fromkeys(plan, 0)
        increments = {i: self._increments(i) for i in plan}
        plain, present = self._rate(len(plan), []), self._rate_of(plan, increments)
        best, rate = self._best(off, increments)
        if present > plain and present * MARGIN >= rate:
            return plan
        return best if rate > plain * MARGIN else off

    def _best(
        self, off: dict[int, int], increments: dict[int, list[Increment]]
    ) -> tuple[dict[int, int], float]:
        """Add increments by descending tokens a row; the plan with the highest rate on the way."""
        order = sorted((s for each in increments.values() for s in each), key=lambda s: -s.ratio)
        best, rate = 0, self._rate(len(off), [])
        for stop in range(1, len(order) + 1):
            if (found := self._rate(len(off), order[:stop])) > rate:
                best, rate = stop, found
        return off | {s.seq_id: s.budget for s in order[:best]}, rate

    def _rate_of(self, plan: dict[int, int], increments: dict[int, list[Increment]]) -> float:
        taken = [s for i, each in increments.items() for s in each if s.budget <= plan[i]]
        return self._rate(len(plan), taken)

    def _rate(self, num_seqs: int, increments: Sequence[Increment]) -> float:
        """Expected tokens over expected cost of a pass of that many sequences with these drafts."""
        rows = sum(each.rows for each in increments)
        plain = self.pass_cost.predict(num_seqs)
        cost = max(plain, self.pass_cost.predict(num_seqs + rows))
        if increments:
            cost += self.draft_cost.predict(rows)
        return (num_seqs + sum(each.tokens for each in increments)) / cost if cost else 0.0

    def _increments(self, seq_id: int) -> list[Increment]:
        """The increments of a sequence's budget, by what became of its drafts and of others'."""
        mine = self._each[seq_id].nodes if seq_id in self._each else []
        nodes = []
        for others, own in zip_longest(self._all.nodes, mine, fillvalue=NO_STATS):
            rows = own.drafted.given(others.drafted)
            nodes.append((rows * own.accepted.given(others.accepted), rows))
        increments = concave_envelope(seq_id, nodes)
        if increments and increments[-1].budget == len(self._all.nodes):
            increments[-1] = replace(increments[-1], budget=self.full)
        return increments

    def _measure(
        self, tried: Sequence[DraftResult], num_rows: int, draft_s: float, pass_s: float
    ) -> None:
        """Learn the costs, in units of the machine's present speed."""
        known = self.pass_cost.predict(num_rows)
        unit_s = pass_s / known if known else pass_s
        if self._unit_s and not self.pass_cost.knows(num_rows):
            unit_s = self._unit_s  # a new size says nothing about the machine
        if self._unit_s:
            unit_s = min(max(unit_s, self._unit_s / 2), self._unit_s * 2)
        self._unit_s += (unit_s - self._unit_s) * (SPEED_MEMORY if self._unit_s else 1)
        if not self._unit_s:
            return
        self.pass_cost.record(num_rows, pass_s / self._unit_s)
        num_nodes = sum(result.num_nodes for result in tried)
        if tried and self._asked_before.issuperset(result.seq_id for result in tried):
            self.draft_cost.record(num_nodes, draft_s / self._unit_s)
        self._steps_since_plain += 1
        if not num_nodes:
            self._plain_passes += 1
            self._steps_since_plain = 0

    def _costs(
        self, num_asked: int, num_rows: int | None, draft_s: float, pass_s: float
    ) -> tuple[float | None, float | None]:
        """The step's cost in plain passes of this batch; the cost of asking about one sequence. None: unknown."""
        plain_s = self.pass_cost.predict(len(self._granted)) * self._unit_s
        if num_rows is None or not plain_s:
            return None, None
        asking = draft_s / self._unit_s / num_asked if num_asked else None
        return (draft_s + pass_s) / plain_s, asking

    def _charge(self, tried: Sequence[DraftResult], draft_s: float, pass_s: float) -> None:
        """Add a share of the step's time to the exploration budget; take out what a trial cost beyond its gain."""
        self._exploration_budget = min(
            self._exploration_budget + self._exploration_share * pass_s, pass_s
        )
        trial = next((t for t in tried if t.seq_id == self._trial_of), None)
        budget = self._plan.get(self._trial_of, self.full)
        if trial is None or self._granted[trial.seq_id] == budget:
            return
        gained = sum(node >= budget for node in trial.path)
        extra = self.pass_cost.predict(len(self._plan) + trial.num_nodes)
        extra -= self.pass_cost.predict(len(self._plan) + min(budget, trial.num_nodes))
        token_s = self.pass_cost.predict(len(self._plan)) / len(self._plan) * self._unit_s
        loss = draft_s * (not budget) + max(0.0, extra) * self._unit_s - gained * token_s
        self._exploration_budget -= max(0.0, loss)
        share = EXPLORATION_SHARE if gained else self._exploration_share / 2
        self._exploration_share = max(MIN_EXPLORATION_SHARE, share)
