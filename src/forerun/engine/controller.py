"""How much to draft: how many nodes to ask a drafter for, and how many of its nodes to verify, none included.

Leviathan et al. (arXiv 2211.17192, theorem 3.8) choose the draft length that emits most tokens a second, given one
acceptance rate and one cost. Here every node has its own probability and every size its measured cost. A step of n
sequences emits one token a sequence and

    sum over the verified nodes of path_probability,   the product of P(accepted | parent accepted) along the path,

and takes pass(n + nodes) + sum ask(nodes asked for), in plain passes of one sequence above no context: of that a pass
costs what its number of rows has cost, and each row its attention to the context. At `rate` tokens a plain pass of
late, a time t is worth rate * t tokens. So the nodes are verified that maximise

    sum path_probability - MARGIN * rate * (pass(n + nodes) - pass(n)),

and as many are asked for as maximise what the first, second, ... node of late added to that, less MARGIN * rate * ask.

What is not tried is not learned: larger questions are tried for a fixed share of the time. Nodes that
were cut are compared with the tokens that came all the same, at no cost. Nothing here reads a clock or draws a number:
the same measurements give the same choices. And none changes a token.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Protocol

from forerun.core import tree
from forerun.core.costs import CostCurve
from forerun.core.means import CASES, MEMORY, DecayedMean
from forerun.core.types import Draft, Seq

MARGIN = 1.25
"""The best of many estimates is overestimated."""
EXPLORATION = 0.004
"""Share of the time for trials."""
RESERVE = 0.5
"""Plain passes that are saved for trials, at most and at first."""
TRIAL_STEPS = 2
"""A drafter's first draft after a pause is slow, it has to read what it missed."""
PLAIN_EVERY = 64
"""Steps after which a plain pass is worth a trial: the unit of all costs."""
STATED = 2.0
"""Cases that a stated confidence weighs as much as."""
PLAIN_FIRST = 2
"""Plain passes that a process begins with: the unit of all costs."""
LAST_PASSES = 5
"""Passes whose median is the machine's present speed."""
FIRST_COSTS = {1: 1.0, 4: 1.15, 16: 2.0}
"""Cost of a pass by its rows before any is measured: nearly free up to four."""
FIRST_VALUE = 0.5
"""What the first node is taken to add before any draft; each further one half as much."""


@dataclass(frozen=True, slots=True)
class DraftResult:
    """One sequence's draft in one step, and its result."""

    seq_id: int
    num_nodes: int
    path: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    """Tokens that the step emitted."""


class Controller(Protocol):
    """Chooses how much to draft, from what earlier drafts cost and brought."""

    def budgets(
        self, seqs: Sequence[Seq], num_others: int = 0, *, is_reading: bool = False
    ) -> dict[int, int]:
        """Return how many nodes each sequence may draft in the coming step, by its id.

        `num_others` sequences decode beside them, without drafts; `is_reading`: the pass reads prompts, too.
        """
        ...

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Return the part of these drafts to verify, by sequence: all unless a controller says otherwise."""
        return drafts

    def learn(
        self,
        results: Sequence[DraftResult],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int = 0,
    ) -> None:
        """Learn from a finished step, whose pass had `num_rows` rows, `num_read` of them of prompts."""
        return


@dataclass(frozen=True, slots=True)
class Fixed(Controller):
    """The same budget for every sequence, always."""

    budget: int

    def budgets(
        self, seqs: Sequence[Seq], num_others: int = 0, *, is_reading: bool = False
    ) -> dict[int, int]:
        """Return the same budget for every sequence."""
        return {seq.id: self.budget for seq in seqs}


class Adaptive(Controller):
    """Chooses what maximises expected tokens a second; `longest` is the largest draft."""

    def __init__(
        self,
        longest: int,
        pass_cost: Mapping[int, float] | None = None,
        row_cost: Callable[[int], float] = lambda context: 0.0,
    ) -> None:
        """Begin with the cost of passes by their rows, in plain passes; measurements take its place.

        `row_cost` is what a row costs more above so many tokens of context.
        """
        self.longest = longest
        self._cost_above, self._row_cost = row_cost, 0.0
        self.pass_cost, self.draft_cost = CostCurve(pass_cost or FIRST_COSTS), CostCurve()
        self.draft_cost.record(0, 0.0)  # until measured, a smaller draft costs less
        self._unit_s = 0.0
        """Seconds of a plain pass at the machine's present speed; 0 before it is known."""
        self._rough_s = 0.0
        """The same by the cost of passes that also read prompts, while there was no other."""
        self._units = deque[float](maxlen=LAST_PASSES)
        self._knows_asking = False
        self._acceptance, self._value = AcceptanceRates(), NodeValues()
        self._num = 0
        """Sequences that decode in the step, those without drafts too; 0 where none may draft."""
        self._is_reading = False
        self._of_seqs: dict[int, NodeValues] = {}
        self._tokens = self._time = 1 / (
            1 - MEMORY
        )  # of a sequence; time in plain passes of its batch
        self._plan: dict[int, int] = {}
        self._requested: dict[int, int] = {}
        self._drafts: dict[int, Draft] = {}
        self._requested_before: frozenset[int] = frozenset()
        self._since_plain, self._reserve, self._trial_steps = 0, RESERVE, 0

    def budgets(
        self, seqs: Sequence[Seq], num_others: int = 0, *, is_reading: bool = False
    ) -> dict[int, int]:
        """Return how many nodes pay, or a trial."""
        before, self._num = self._of_seqs, len(seqs) + num_others
        self._is_reading = is_reading
        self._of_seqs = {seq.id: before.get(seq.id) or NodeValues() for seq in seqs}
        lengths = [len(seq.tokens) for seq in seqs]
        self._row_cost = self._cost_above(sum(lengths) // max(len(seqs), 1))
        self._price = MARGIN * self._num * self._speedup / self._pass(self._num)
        self._plan = {i: self._best_length(of_seq) for i, of_seq in self._of_seqs.items()}
        self._requested = self._plan | self._trial()
        return self._requested

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Keep the nodes that are worth their rows."""
        self._drafts = drafts
        paths = {
            i: tree.path_products(draft.parents, self._acceptance.of(draft))
            for i, draft in drafts.items()
        }
        by_rows = self.pass_cost.costs(self._num, self._num + sum(map(len, drafts.values())))
        costs = [cost + self._row_cost * k for k, cost in enumerate(by_rows, self._num)]
        kept = best_cut(paths, [self._price * cost for cost in costs])
        num_kept = sum(kept.values())
        row = self._price * max(0.0, costs[num_kept] - costs[0]) / max(num_kept, 1)
        longest = max([len(self._value), *map(len, drafts.values())])
        for i, path in paths.items():
            if requested := self._requested.get(i, 0):
                values = [p - row for p in path[: kept[i]]]
                values += [0.0] * (
                    min(longest, requested) - kept[i]
                )  # of nodes that were cut or missing
                self._of_seqs[i].record(values)
                self._value.record(values)
        return {i: draft.trim(kept[i]) for i, draft in drafts.items()}

    def learn(
        self,
        results: Sequence[DraftResult],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int = 0,
    ) -> None:
        """Update probabilities, costs, the rate and what is saved for trials."""
        requested = frozenset(r.seq_id for r in results if self._requested.get(r.seq_id))
        self._measure(requested, num_rows, draft_s, pass_s, num_read)
        for result in results:
            if result.seq_id in self._drafts:
                self._acceptance.record(self._drafts[result.seq_id], result.tokens)
        if (self._unit_s or self._rough_s) and self._num:
            self._account(results, num_rows - num_read, draft_s)
        self._requested_before, self._requested, self._drafts = requested, {}, {}
        self._num = 0

    @property
    def _speedup(self) -> float:
        """Recent speed-up over plain decoding in the batch."""
        return self._tokens / self._time

    def _pass(self, num_rows: int) -> float:
        """Return what a pass of so many rows costs above the present context."""
        return self.pass_cost.predict(num_rows) + self._row_cost * num_rows

    def _best_length(self, of_seq: NodeValues) -> int:
        """Return how many nodes add most, less what asking for them costs; none while that is unknown."""
        if not self._knows_asking:
            return 0
        added = [0.0, *accumulate(self._value.expected(of_seq))]
        costs = self.draft_cost.costs(1, len(added) - 1)
        nets = [0.0, *(x - self._price * c for x, c in zip(added[1:], costs, strict=True))]
        best = nets.index(max(nets))
        return best if best < len(self._value) or not best else self.longest

    def _trial(self) -> dict[int, int]:
        """Return plain passes at first and now and then, or larger questions, where there is time for trials."""
        is_known = self._unit_s or (self._is_reading and self._rough_s)
        if not is_known or (self._reserve >= 0 and self._since_plain >= PLAIN_EVERY):
            return dict.fromkeys(self._plan, 0)
        if self._reserve < 0 and not self._knows_asking:
            return dict.fromkeys(self._plan, 1)  # the smallest question tells what asking costs
        larger = {i: self._larger(k) for i, k in self._plan.items()}
        if not self._trial_steps:
            if self._reserve < 0 or larger == self._plan:
                return {}
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        return larger

    def _larger(self, k: int) -> int:
        """Return twice as many nodes; all where that is as many as drafts have, or before any draft."""
        return 2 * k if 0 < 2 * k < len(self._value) else self.longest

    def _measure(
        self,
        requested: frozenset[int],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int,
    ) -> None:
        """Learn the costs, in units of the machine's present speed.

        Of passes that read prompts only what asking costs: theirs tell little of small ones, and roughly the unit.
        """
        is_plain = self._num > 0 and num_rows - num_read == self._num
        self._since_plain = 0 if is_plain else self._since_plain + 1
        found_s = pass_s / self._pass(num_rows)
        if num_read:
            if is_plain:
                self._rough_s = min(found_s, self._rough_s or found_s)
        elif self.pass_cost.knows(num_rows) or (is_plain and not self._unit_s):
            self._units.append(found_s)
        if len(self._units) >= PLAIN_FIRST:
            self._unit_s = (median if len(self._units) == LAST_PASSES else min)(self._units)
        unit_s = self._unit_s or (self._rough_s if num_read else self._units and self._units[-1])
        if not unit_s:
            return
        if not num_read:
            self.pass_cost.record(num_rows, max(0.0, pass_s / unit_s - self._row_cost * num_rows))
        if requested and self._requested_before.issuperset(requested):
            nodes = sum(len(self._drafts[i]) for i in requested if i in self._drafts)
            self.draft_cost.record(round(nodes / len(requested)), draft_s / unit_s / len(requested))
            if not self._knows_asking:
                self._knows_asking, self._trial_steps = True, 0

    def _account(self, results: Sequence[DraftResult], num_rows: int, draft_s: float) -> None:
        """Add the step's tokens and time, and a share of its time to what is saved for trials.

        A trial takes out the time that went beyond what its tokens take at the present speed.
        """
        time = (draft_s / (self._unit_s or self._rough_s) + self._pass(num_rows)) / self._pass(
            self._num
        )
        tokens = 1 + sum(len(r.path) for r in results if r.seq_id in self._of_seqs) / self._num
        if self._requested and self._requested != self._plan:
            self._reserve -= time - tokens / self._speedup
        self._reserve = min(self._reserve + EXPLORATION * time, RESERVE)
        self._tokens, self._time = self._tokens * MEMORY + tokens, self._time * MEMORY + time


def best_cut(paths: Mapping[int, Sequence[float]], costs: Sequence[float]) -> dict[int, int]:
    """Return how many nodes of each draft to verify, given their path probabilities.

    Nodes are taken in descending order, each after those before it in its draft; `costs[k]` is that of a pass with k
    nodes, in tokens.

    >>> best_cut({7: [0.9, 0.1], 8: [0.6, 0.5]}, [1.0, 1.2, 1.4, 1.8, 2.9])
    {7: 1, 8: 2}
    """
    nodes = [
        (least, i, p)
        for i, path in paths.items()
        for least, p in zip(accumulate(path, min), path, strict=True)
    ]
    nodes.sort(key=lambda node: -node[0])
    added = accumulate((p for *_, p in nodes), initial=0.0)
    nets = [tokens - cost for tokens, cost in zip(added, costs, strict=True)]
    kept = dict.fromkeys(paths, 0)
    for _, i, _ in nodes[: nets.index(max(nets))]:
        kept[i] += 1
    return kept


class AcceptanceRates:
    """P(node accepted | parent accepted), learned from every draft of one drafter, verified or not.

    Nodes of about the same confidence are counted together, or, where the drafter states none, those of one index. A
    rate begins with what was stated; without confidence with a half.
    """

    def __init__(self) -> None:
        self._by_confidence = [DecayedMean(MEMORY) for _ in range(17)]
        self._by_index: list[DecayedMean] = []

    def of(self, draft: Draft) -> list[float]:
        """Return every node's rate."""
        stated = draft.confidence or (0.5,) * len(draft)
        seen = self._counted(draft)
        return [rate.given(p, STATED) for rate, p in zip(seen, stated, strict=True)]

    def record(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Compare a draft, cut or not, with the tokens that came."""
        seen = self._counted(draft)
        for node, is_accepted in draft.matches(tokens):
            seen[node].record(is_accepted)

    def _counted(self, draft: Draft) -> Sequence[DecayedMean]:
        """Return the mean that each node is counted in."""
        if draft.confidence is None:
            missing = len(draft) - len(self._by_index)
            self._by_index += [DecayedMean(MEMORY) for _ in range(missing)]
            return self._by_index[: len(draft)]
        return [self._by_confidence[_level(p)] for p in draft.confidence]


def _level(p: float) -> int:
    """Return the level of a confidence: each is as wide as a factor of two in the odds.

    >>> [_level(p) for p in (0, 0.001, 0.5, 0.6, 0.7, 1)]
    [0, 0, 8, 9, 9, 16]
    """
    if not 0 < p < 1:
        return 16 * (p > 0)
    return min(max(8 + round(math.log2(p / (1 - p))), 0), 16)


class NodeValues:
    """What the first, second, ... node of drafts added, in tokens net of their rows' time: of all, or of a sequence."""

    def __init__(self) -> None:
        self._means: list[DecayedMean] = []

    def __len__(self) -> int:
        """As many nodes as the largest draft had; one before the first."""
        return len(self._means) or 1

    def expected(self, of_seq: NodeValues) -> list[float]:
        """Return the value of each node in a sequence; `own` is what its drafts showed."""
        values = [FIRST_VALUE / 2**i for i in range(len(self))]
        for means in (self._means, of_seq._means):
            for i, mean in enumerate(means[: len(values)]):
                values[i] = mean.given(values[i], CASES)
        return values

    def record(self, values: Sequence[float]) -> None:
        """Count a draft's nodes."""
        self._means += [DecayedMean(MEMORY) for _ in range(len(values) - len(self._means))]
        for mean, value in zip(self._means, values, strict=False):
            mean.record(value)
