"""Cutting drafts that say how sure they are, node by node, before the target sees them.

A drafter that costs little can be asked in every step if a weak draft need not be bought to be
judged: it is cut where the next node's chance no longer pays for its row, to nothing if need be, and
what was cut is held against the tokens that came, which costs nothing. Whether asking pays is
learned in the same way: what the kept nodes promise beyond their rows against the drafter's time.

In a batch a row delays everyone. What counts for a sequence is its own speed, and the slow ones
count most: a node is worth its chance over the `FAIRNESS`th power of the speed-up its sequence
has; a pass, the sum of what the delay takes from all. Alone in a batch this comes down to the tokens
a second of that sequence.

What is cut follows from tokens that were there before the pass, and only drafts that were chosen,
not drawn, say how sure they are: the law of the output is kept (`core.types.Draft`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forerun.core.costs import CostCurve
from forerun.core.types import Draft
from forerun.engine.corners import Step, corners
from forerun.engine.luck import Trial
from forerun.engine.trust import Trust

FAIRNESS = 8
"""1 is proportional fairness; 2 the least waiting time on average; more looks at the slowest only."""
CAUTION = 1.2
"""Nodes must promise so many times what their rows take: those that look best look better than they are."""
SPEED_MEMORY = 0.98
SPEED_PRIOR = 40.0
"""Steps at the plain speed that a sequence begins with."""
WORTH_MEMORY = 0.8
WORTH_MEMORY_OF_ALL = 0.98
FIRST_WORTH = 0.5
"""Tokens that asking is hoped to bring before anything is known."""
COST_RATE = 0.1
COST_OUTLIER = 2.0
"""Asking counts as at most so many times what it took before: one of two drafters may be tried now and then."""
SILENCE_RATE = 0.02
MOST_SILENCE = 0.1
"""Share of drafts that may fail to say how sure they are while what the others say decides."""


@dataclass(slots=True)
class Standing:
    """What is known of one sequence: tokens and time, both in plain steps, what asking brings, its bias."""

    worth: float
    tokens: float = SPEED_PRIOR
    time: float = SPEED_PRIOR
    bias: float = 0.0

    @property
    def speedup(self) -> float:
        """Over plain decoding in this batch, of late."""
        return self.tokens / self.time


class Trimmer:
    """Says who should be asked, cuts what is proposed, and learns from what came."""

    def __init__(self, pass_cost: CostCurve) -> None:
        self.pass_cost = pass_cost
        self.trust = Trust()
        self._silence, self._num_drafts = (
            1.0,
            0,
        )  # share of drafts that do not say how sure they are
        self._standings: dict[int, Standing] = {}
        self._proposed: dict[int, Draft] = {}
        self._worth = FIRST_WORTH
        self._ask_cost, self._num_asks = 0.0, 0

    @property
    def is_confident(self) -> bool:
        """Almost all drafts say how sure they are."""
        return self._silence < MOST_SILENCE

    def follow(self, ids: Iterable[int]) -> None:
        """These sequences run now: forget the others."""
        self._standings = {i: self._standings.get(i) or Standing(self._worth) for i in ids}

    def wanted(self, ids: Sequence[int]) -> list[int]:
        """Those of these sequences of which asking the drafter pays."""
        price = self._ask_cost * self._price_of_time()
        return [i for i in ids if self._standings[i].worth >= price]

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Cut the drafts where they stop paying; those that do not say how sure they are stay whole."""
        for draft in filter(len, drafts.values()):
            self._num_drafts += 1
            miss = (draft.confidence is None) - self._silence
            self._silence += miss * max(SILENCE_RATE, 1 / self._num_drafts)
        self._proposed = {i: d for i, d in drafts.items() if d.confidence is not None}
        num_rows = len(self._standings) + sum(
            len(draft) for i, draft in drafts.items() if i not in self._proposed
        )
        steps = [step for i, draft in self._proposed.items() for step in self._steps(i, draft)]
        taken, row_price = self._choose(steps, num_rows)
        budgets = dict.fromkeys(self._proposed, 0) | {step.seq_id: step.budget for step in taken}
        for i in drafts:
            self._value(i, [step for step in taken if step.seq_id == i], row_price)
        return {i: d.trim(budgets[i]) if i in budgets else d for i, d in drafts.items()}

    def learn(self, trials: Sequence[Trial], cost: float | None, ask_cost: float | None) -> None:
        """What came of a step: its cost in plain passes of the batch, and of asking about one sequence."""
        for trial in trials:
            standing = self._standings.get(trial.seq_id)
            if standing is None:
                continue
            draft = self._proposed.get(trial.seq_id)
            if draft is not None:
                standing.bias = self.trust.judge(draft, trial.tokens, standing.bias)
            if cost is not None:
                standing.tokens = standing.tokens * SPEED_MEMORY + 1 + len(trial.path)
                standing.time = standing.time * SPEED_MEMORY + cost
        if ask_cost is not None:
            self._record_ask(ask_cost)
        self._proposed = {}

    def _record_ask(self, cost: float) -> None:
        self._num_asks += 1
        rate = max(COST_RATE, 1 / self._num_asks)
        if rate == COST_RATE:
            cost = min(cost, COST_OUTLIER * self._ask_cost)
        self._ask_cost += (cost - self._ask_cost) * rate

    def _price_of_time(self) -> float:
        """What a unit of cost takes from all sequences together, with caution."""
        lost = sum(standing.speedup ** (1 - FAIRNESS) for standing in self._standings.values())
        plain = self.pass_cost.predict(len(self._standings))
        return CAUTION * lost / plain if plain else 0.0

    def _steps(self, seq_id: int, draft: Draft) -> list[Step]:
        standing = self._standings[seq_id]
        weight = standing.speedup**-FAIRNESS
        reach = self.trust.reach(draft, standing.bias)
        return corners(seq_id, ((chance * weight, 1.0) for chance in reach))

    def _choose(self, steps: list[Step], num_rows: int) -> tuple[list[Step], float]:
        """The worthiest steps, as many as pay, and what one of their rows costs."""
        order = sorted(steps, key=lambda step: -step.worth)
        price, plain = self._price_of_time(), self.pass_cost.predict(num_rows)
        tokens = rows = most = cost = 0.0
        best, row_price = 0, 0.0
        for stop, step in enumerate(order, 1):
            tokens, rows = tokens + step.tokens, rows + step.rows
            cost = price * max(0.0, self.pass_cost.predict(num_rows + rows) - plain)
            if tokens - cost > most:
                best, most, row_price = stop, tokens - cost, cost / rows
        return order[:best], row_price

    def _value(self, seq_id: int, taken: list[Step], row_price: float) -> None:
        """Learn what asking brought: what the kept nodes promise beyond their rows."""
        net = sum(step.tokens - row_price * step.rows for step in taken)
        standing = self._standings[seq_id]
        standing.worth += (net - standing.worth) * (1 - WORTH_MEMORY)
        self._worth += (net - self._worth) * (1 - WORTH_MEMORY_OF_ALL)
