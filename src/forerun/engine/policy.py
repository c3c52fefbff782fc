"""How much to draft: the nodes to ask for and the nodes to keep, in every step, none included.

One objective. Every candidate node j of sequence i has a chance p_ij to be accepted (`chances`), every pass of r rows
and every question to the drafter a measured cost, pass(r) and ask(k) for k nodes, in plain passes (`core.costs`). Of n
sequences, those of speed-up s_i over plain decoding of late, the nodes K_i and questions k_i are taken that maximise

    sum_i s_i^-a sum_{j in K_i} p_ij  -  w [ m (pass(n + sum_i |K_i|) - pass(n)) + m' sum_i ask(k_i) ],
    w = sum_i s_i^(1 - a) / pass(n)

This is the gradient of the alpha-fair sum_i s_i^(1 - a) / (1 - a): a token of i adds s_i^-a to it, and time takes from
all. For one sequence it says: a node is kept if its chance exceeds what its row takes at the present speed.

A draft is cut before the pass, at the best of all cuts: nodes by descending chance per row along the concave envelope
of each draft, while the objective grows. Drafts that were drawn are not cut, as that would bias the output; they are
as large as was asked for. How many nodes to ask for is decided before they are seen, by what the first, second, ...
node of late added to the objective.

What is not tried is not learned: larger questions and plain passes are tried for a fixed share of the time, the
exploration budget. What is cut is compared with the tokens that came all the same, at no cost.

Nothing here reads a clock or draws a number: the same measurements give the same choices. And none changes a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from statistics import median

from forerun.core.costs import CostCurve
from forerun.core.types import Draft, Seq
from forerun.engine.chances import Bias, Chances, Mean
from forerun.engine.controller import Controller, DraftResult, Prior

ALPHA = 8
"""1 is proportional fairness, 2 the least mean waiting time; larger values look at the slowest sequence only."""
MARGIN = 1.25
QUESTION_MARGIN = 1.125
"""m and m': the best of many estimates is overestimated."""
SPEED_MEMORY = 0.98
"""What a step counts for in s_i after the next; a sequence begins as after many plain steps."""
VALUE_MEMORY = 0.95
VALUE_MEMORY_OF_ALL = 0.98
"""What a draft counts for after the next in what the nodes of a sequence, and of all, are worth."""
VALUE_CASES = 4.0
"""Drafts that the worth of all nodes weighs as much as, or what is hoped of them at first."""
FIRST_VALUE = 0.5
EXPLORATION = 0.004
"""Share of the time."""
TRIAL_STEPS = 2
"""A drafter's first draft after a pause is slow, it has to read what it missed."""
PLAIN_EVERY = 64
"""Steps after which a plain pass is worth a trial."""
LAST_PASSES = 5
"""Their median is the machine's present speed, the fastest until there are so many."""
PLAIN_FIRST = 2
"""Plain passes before anything is drafted: one may have been slow."""


@dataclass(slots=True)
class State:
    """What is known of one sequence; tokens and time in plain steps."""

    values: list[Mean] = field(default_factory=list)
    tokens: float = 1 / (1 - SPEED_MEMORY)
    time: float = 1 / (1 - SPEED_MEMORY)
    bias: Bias = field(default_factory=Bias)

    @property
    def speedup(self) -> float:
        """Over plain decoding in this batch, of late."""
        return self.tokens / self.time

    @property
    def weight(self) -> float:
        """Of a token."""
        return self.speedup**-ALPHA


@dataclass(frozen=True, slots=True)
class Increment:
    """The next `rows` nodes of a sequence's draft, up to `stop`, and what they add to the objective."""

    seq_id: int
    stop: int
    gain: float
    rows: int

    @property
    def ratio(self) -> float:
        """A row's part."""
        return self.gain / self.rows


def envelope(seq_id: int, gains: Iterable[float]) -> list[Increment]:
    """Steps along the concave envelope: nodes that gain little are judged with those that come after them.

    >>> [(i.stop, i.gain) for i in envelope(0, [0.9, 0.1, 0.5])]
    [(1, 0.9), (3, 0.6)]
    """
    found: list[Increment] = []
    for stop, gain in enumerate(gains, 1):
        step = Increment(seq_id, stop, gain, 1)
        while found and step.ratio >= found[-1].ratio:
            last = found.pop()
            step = Increment(seq_id, stop, last.gain + step.gain, last.rows + step.rows)
        found.append(step)
    return found


class Policy(Controller):
    """Chooses what maximises expected tokens a second; `full` is the largest draft."""

    def __init__(self, full: int, *, keeps_seeds: bool = False, prior: Prior | None = None) -> None:
        """`keeps_seeds`: the drafter draws its drafts, so the tokens of a seeded request depend on their size.

        Such requests always draft in full: the same seed must give the same tokens. `prior` is what an
        earlier run measured.
        """
        self.full = full
        self.keeps_seeds = keeps_seeds
        prior = prior or Prior()
        self.pass_cost = CostCurve(prior.pass_cost.points)
        self.ask_cost = CostCurve(prior.draft_cost.points)
        self.ask_cost.record(0, 0.0)  # until measured, a smaller draft costs less
        self._knows_asking = bool(prior.draft_cost.points)
        self._chances = Chances(prior.nodes)
        seen, row = VALUE_CASES, MARGIN * (self.pass_cost.v(2) - 1)
        known = [Mean(seen, seen * had * max(0.0, share - row)) for had, share in prior.nodes]
        self._values = known[:full] or [Mean()]  # of the nodes that drafts were seen to have
        self._states: dict[int, State] = {}
        self._bound: frozenset[int] = frozenset()
        self._plan: dict[int, int] = {}
        self._granted: dict[int, int] = {}
        self._drafts: dict[int, Draft] = {}
        self._asked_before: frozenset[int] = frozenset()
        self._paces_s: deque[float] = deque(maxlen=LAST_PASSES)  # seconds of a unit of cost
        self._pace_s = 0.0
        self._since_plain = PLAIN_EVERY
        self._purse = 0.0
        self._trial_steps = 0

    def budgets(self, seqs: Sequence[Seq]) -> dict[int, int]:
        """The best questions, or a trial; all for requests whose seed binds them."""
        self._states = {seq.id: self._states.get(seq.id) or State() for seq in seqs}
        drawn = (s for s in seqs if self.keeps_seeds and not s.params.is_greedy)
        self._bound = frozenset(seq.id for seq in drawn if seq.params.seed is not None)
        free = [seq.id for seq in seqs if seq.id not in self._bound]
        self._plan = {i: self._best_question(self._states[i]) for i in free}
        self._granted = self._plan | self._explore() | dict.fromkeys(self._bound, self.full)
        return self._granted

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Keep the nodes that maximise the objective; drafts that were drawn stay whole."""
        self._drafts = drafts
        whole = {i for i, d in drafts.items() if i in self._bound or d.probs is not None}
        num_rows = len(self._states) + sum(len(drafts[i]) for i in whole)
        gains = {i: self._gains(i, draft) for i, draft in drafts.items()}
        steps = [step for i in drafts if i not in whole for step in envelope(i, gains[i])]
        steps.sort(key=attrgetter("ratio"), reverse=True)
        kept = dict.fromkeys(drafts, 0) | {i: len(drafts[i]) for i in whole}
        weight, base = self._weight_of_time(), self.pass_cost.predict(num_rows)
        gain, rows, best = 0.0, num_rows, 0.0
        for stop, step in enumerate(steps, 1):
            gain, rows = gain + step.gain, rows + step.rows
            net = gain - weight * MARGIN * max(0.0, self.pass_cost.predict(rows) - base)
            if net > best:
                best, most = net, stop
        for step in steps[: most if best else 0]:
            kept[step.seq_id] = step.stop
        self._learn_values(gains, kept, weight)
        return {i: draft.trim(kept[i]) for i, draft in drafts.items()}

    def learn(
        self, results: Sequence[DraftResult], num_rows: int | None, draft_s: float, pass_s: float
    ) -> None:
        """Update chances, costs, speeds and the exploration budget."""
        asked = [result for result in results if self._granted.get(result.seq_id)]
        if num_rows is not None:
            self._measure(asked, num_rows, draft_s, pass_s)
        for result in results:
            if (draft := self._drafts.get(result.seq_id)) is not None:
                self._chances.learn(draft, result.tokens, self._states[result.seq_id].bias)
        if num_rows is not None:
            self._account(results, num_rows, draft_s)
        self._asked_before = frozenset(result.seq_id for result in asked)
        self._granted, self._drafts = {}, {}

    def _best_question(self, state: State) -> int:
        """As many nodes as add most, less what asking for them costs; none while that cost is unknown."""
        if not self._knows_asking:
            return 0
        weight, total, best, most = self._weight_of_time(), 0.0, 0.0, 0
        for k, value in enumerate(self._expected(state), 1):
            total += value * state.weight
            if (net := total - weight * QUESTION_MARGIN * self.ask_cost.predict(k)) > best:
                best, most = net, k
        return most if most < len(self._values) else self.full

    def _explore(self) -> dict[int, int]:
        """A plain pass, or a larger question about the next sequence in turn, if the exploration budget allows it."""
        larger = {i: self._next(k) for i, k in self._plan.items()}
        if not self._trial_steps:
            if self._purse < 0:
                return {}
            if self._since_plain >= PLAIN_EVERY:
                return dict.fromkeys(self._plan, 0)
            if larger == self._plan:
                return {}
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        return larger

    def _next(self, k: int) -> int:
        """Twice as many nodes; all where that is as many as drafts have, or before any draft."""
        return 2 * k if 0 < 2 * k < len(self._values) else self.full

    def _expected(self, state: State) -> Iterator[float]:
        """What each node adds, in tokens of the sequence."""
        hope = FIRST_VALUE
        for every, own in zip_longest(self._values, state.values, fillvalue=Mean()):
            yield own.given(every.given(hope, VALUE_CASES), VALUE_CASES)
            hope /= 2

    def _gains(self, seq_id: int, draft: Draft) -> list[float]:
        state = self._states[seq_id]
        return [state.weight * chance for chance in self._chances.reach(draft, state.bias.value)]

    def _weight_of_time(self) -> float:
        """What a unit of cost takes from all sequences together."""
        lost = sum(state.speedup ** (1 - ALPHA) for state in self._states.values())
        return lost / self.pass_cost.predict(len(self._states))

    def _learn_values(
        self, gains: dict[int, list[float]], kept: dict[int, int], weight: float
    ) -> None:
        """What each node of a draft added, those that were not there or not kept nothing."""
        num_seqs, rows = len(self._states), sum(kept.values())
        added = self.pass_cost.predict(num_seqs + rows) - self.pass_cost.predict(num_seqs)
        row = weight * MARGIN * max(0.0, added) / max(rows, 1)
        longest = max(map(len, gains.values()), default=0)
        self._values += [Mean() for _ in range(longest - len(self._values))]
        for i, gain in gains.items():
            state = self._states[i]
            state.values += [Mean() for _ in range(len(self._values) - len(state.values))]
            nodes = zip(state.values, self._values, range(self._granted.get(i, 0)), strict=False)
            for own, every, j in nodes:
                net = (gain[j] - row) / state.weight if j < kept[i] else 0.0
                own.record(net, VALUE_MEMORY)
                every.record(net, VALUE_MEMORY_OF_ALL)

    def _measure(
        self, asked: Sequence[DraftResult], num_rows: int, draft_s: float, pass_s: float
    ) -> None:
        """Learn the costs, in units of the machine's present speed."""
        known = self.pass_cost.predict(num_rows)
        if len(self._paces_s) < PLAIN_FIRST or self.pass_cost.knows(
            num_rows
        ):  # a new size tells nothing of speed
            self._paces_s.append(pass_s / known)
        self._pace_s = (median if len(self._paces_s) == LAST_PASSES else min)(self._paces_s)
        if not self._pace_s:
            return
        self.pass_cost.record(num_rows, pass_s / self._pace_s)
        if asked and self._asked_before.issuperset(result.seq_id for result in asked):
            num_nodes = sum(len(self._drafts.get(result.seq_id, ())) for result in asked)
            size, cost = round(num_nodes / len(asked)), draft_s / self._pace_s / len(asked)
            self.ask_cost.record(size, cost)
            self._knows_asking = True
        self._since_plain += 1
        if num_rows == len(self._granted) and len(self._paces_s) >= PLAIN_FIRST:
            self._since_plain = 0

    def _account(self, results: Sequence[DraftResult], num_rows: int, draft_s: float) -> None:
        """The step's tokens and time, in plain steps, by sequence; into the exploration budget a share of its time.

        A trial takes out the time that went beyond what its tokens take at the present speed.
        """
        if not self._pace_s or not self._states:
            return
        plain = self.pass_cost.predict(len(self._states))
        time = (draft_s / self._pace_s + self.pass_cost.predict(num_rows)) / plain
        speedup = sum(state.speedup for state in self._states.values()) / len(self._states)
        emitted = 0
        for result in results:
            if (state := self._states.get(result.seq_id)) is None:
                continue  # it begins
            emitted += 1 + len(result.path)
            state.tokens = state.tokens * SPEED_MEMORY + 1 + len(result.path)
            state.time = state.time * SPEED_MEMORY + time
        self._purse += EXPLORATION * time
        if self._granted != self._plan | dict.fromkeys(self._bound, self.full):  # a trial
            self._purse -= time - emitted / len(self._states) / speedup
        self._purse = min(self._purse, 1.0)
