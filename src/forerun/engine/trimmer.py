"""Cutting drafts that say how sure they are, node by node, before the target sees them.

A drafter that costs little can be asked in every step if a weak draft need not be bought to be
judged: it is cut where the next node's chance no longer pays for its row, to nothing if need be, and
what was cut is held against the tokens that came, which costs nothing. Whether asking pays is
learned in the same way: what the kept nodes promise beyond their rows against the drafter's time.

In a batch a row delays everyone. What counts for a sequence is its own speed, and the slow ones
count most: a node is worth its chance over the `ALPHA`th power of the speed-up its sequence
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
from forerun.engine.acceptance import DraftResult
from forerun.engine.calibration import ConfidenceCalibrator
from forerun.engine.envelope import Increment, concave_envelope

ALPHA = 8
"""1 is proportional fairness; 2 the least waiting time on average; more looks at the slowest only."""
SAFETY_MARGIN = 1.2
"""Nodes must promise so many times what their rows take: those that look best look better than they are."""
SPEEDUP_MEMORY = 0.98
SPEEDUP_PRIOR = 40.0
"""Steps at the plain speed that a sequence begins with."""
BENEFIT_MEMORY = 0.8
BENEFIT_MEMORY_OF_ALL = 0.98
FIRST_BENEFIT = 0.5
"""Tokens that asking is hoped to bring before anything is known."""
COST_RATE = 0.1
COST_OUTLIER = 2.0
"""Asking counts as at most so many times what it took before: one of two drafters may be tried now and then."""
SILENCE_RATE = 0.02
MOST_SILENCE = 0.1
"""Frequency of drafts that may fail to say how sure they are while what the others say decides."""


@dataclass(slots=True)
class SequenceState:
    """What is known of one sequence: tokens and time, both in plain steps, what asking brings, its bias."""

    benefit: float
    tokens: float = SPEEDUP_PRIOR
    time: float = SPEEDUP_PRIOR
    bias: float = 0.0

    @property
    def speedup(self) -> float:
        """Over plain decoding in this batch, of late."""
        return self.tokens / self.time


class Trimmer:
    """Says who should be asked, cuts what is proposed, and learns from what came."""

    def __init__(self, pass_cost: CostCurve) -> None:
        self.pass_cost = pass_cost
        self.calibrator = ConfidenceCalibrator()
        self._silence, self._num_drafts = (
            1.0,
            0,
        )  # share of drafts that do not say how sure they are
        self._states: dict[int, SequenceState] = {}
        self._proposed: dict[int, Draft] = {}
        self._benefit = FIRST_BENEFIT
        self._ask_cost, self._num_asks = 0.0, 0

    @property
    def is_confident(self) -> bool:
        """Almost all drafts say how sure they are."""
        return self._silence < MOST_SILENCE

    def follow(self, ids: Iterable[int]) -> None:
        """These sequences run now: forget the others."""
        self._states = {i: self._states.get(i) or SequenceState(self._benefit) for i in ids}

    def wanted(self, ids: Sequence[int]) -> list[int]:
        """Those of these sequences of which asking the drafter pays."""
        price = self._ask_cost * self._weight_of_time()
        return [i for i in ids if self._states[i].benefit >= price]

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Cut the drafts where they stop paying; those that do not say how sure they are stay whole."""
        for draft in filter(len, drafts.values()):
            self._num_drafts += 1
            miss = (draft.confidence is None) - self._silence
            self._silence += miss * max(SILENCE_RATE, 1 / self._num_drafts)
        self._proposed = {i: d for i, d in drafts.items() if d.confidence is not None}
        num_rows = len(self._states) + sum(
            len(draft) for i, draft in drafts.items() if i not in self._proposed
        )
        steps = [step for i, draft in self._proposed.items() for step in self._steps(i, draft)]
        taken, row_price = self._choose(steps, num_rows)
        budgets = dict.fromkeys(self._proposed, 0) | {step.seq_id: step.budget for step in taken}
        for i in drafts:
            self._value(i, [step for step in taken if step.seq_id == i], row_price)
        return {i: d.trim(budgets[i]) if i in budgets else d for i, d in drafts.items()}

    def learn(
        self, trials: Sequence[DraftResult], cost: float | None, ask_cost: float | None
    ) -> None:
        """What came of a step: its cost in plain passes of the batch, and of asking about one sequence."""
        for trial in trials:
            state = self._states.get(trial.seq_id)
            if state is None:
                continue
            draft = self._proposed.get(trial.seq_id)
            if draft is not None:
                state.bias = self.calibrator.judge(draft, trial.tokens, state.bias)
            if cost is not None:
                state.tokens = state.tokens * SPEEDUP_MEMORY + 1 + len(trial.path)
                state.time = state.time * SPEEDUP_MEMORY + cost
        if ask_cost is not None:
            self._record_ask(ask_cost)
        self._proposed = {}

    def _record_ask(self, cost: float) -> None:
        self._num_asks += 1
        rate = max(COST_RATE, 1 / self._num_asks)
        if rate == COST_RATE:
            cost = min(cost, COST_OUTLIER * self._ask_cost)
        self._ask_cost += (cost - self._ask_cost) * rate

    def _weight_of_time(self) -> float:
        """What a unit of cost takes from all sequences together, with the safety margin."""
        lost = sum(state.speedup ** (1 - ALPHA) for state in self._states.values())
        plain = self.pass_cost.predict(len(self._states))
        return SAFETY_MARGIN * lost / plain if plain else 0.0

    def _steps(self, seq_id: int, draft: Draft) -> list[Increment]:
        state = self._states[seq_id]
        weight = state.speedup**-ALPHA
        reach = self.calibrator.reach(draft, state.bias)
        return concave_envelope(seq_id, ((chance * weight, 1.0) for chance in reach))

    def _choose(self, steps: list[Increment], num_rows: int) -> tuple[list[Increment], float]:
        """The increments with the most tokens a row, while the net gain grows, and the cost of a row."""
        order = sorted(steps, key=lambda step: -step.ratio)
        price, plain = self._weight_of_time(), self.pass_cost.predict(num_rows)
        tokens = rows = most = cost = 0.0
        best, row_price = 0, 0.0
        for stop, step in enumerate(order, 1):
            tokens, rows = tokens + step.tokens, rows + step.rows
            cost = price * max(0.0, self.pass_cost.predict(num_rows + rows) - plain)
            if tokens - cost > most:
                best, most, row_price = stop, tokens - cost, cost / rows
        return order[:best], row_price

    def _value(self, seq_id: int, taken: list[Increment], row_price: float) -> None:
        """Learn what asking brought: what the kept nodes promise beyond their rows."""
        net = sum(step.tokens - row_price * step.rows for step in taken)
        state = self._states[seq_id]
        state.benefit += (net - state.benefit) * (1 - BENEFIT_MEMORY)
        self._benefit += (net - self._benefit) * (1 - BENEFIT_MEMORY_OF_ALL)
