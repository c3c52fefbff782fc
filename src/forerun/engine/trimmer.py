"""Cutting drafts that carry confidences, node by node, before they are verified.

In a batch a row delays all sequences, so what counts is each sequence's own speed, and the slow ones count most.
Nodes are kept so as to increase the alpha-fair sum

    sum_i s_i^(1 - alpha) / (1 - alpha),    s_i = tokens_i / time_i

where s_i is the speed-up of sequence i over plain decoding in this batch, of late. One more expected token of i
adds s_i^-alpha to it (per unit of time); a pass that takes longer by the share x of a plain pass takes away
x sum_i s_i^(1 - alpha). So a set of nodes with chances p_ij is best where

    sum_ij s_i^-alpha p_ij  -  SAFETY_MARGIN (v(n + rows) - v(n)) / v(n) sum_i s_i^(1 - alpha)

is largest, nodes taken by descending chance. For one sequence this is tokens over time.

What was cut is still compared with the tokens that came, which costs nothing, so a weak draft need not be
verified to be judged. Whether to ask the drafter about a sequence at all is learned in the same way: the net
gain of its drafts' kept nodes against the time that asking takes.

What is cut follows from tokens that were there before the pass, and only drafts that were chosen, not drawn,
carry confidences: the distribution of the output is kept (`core.types.Draft`).
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
"""1 is proportional fairness, 2 the least mean waiting time; larger values look at the slowest sequence only."""
SAFETY_MARGIN = 1.2
"""Nodes must gain so many times what their rows cost: the best of many estimates is overestimated."""
SPEEDUP_MEMORY = 0.98
SPEEDUP_PRIOR = 40.0
"""Steps at the plain speed that a sequence begins with."""
BENEFIT_MEMORY = 0.8
BENEFIT_MEMORY_OF_ALL = 0.98
FIRST_BENEFIT = 0.5
"""Net tokens that asking is expected to bring before anything is known."""
COST_RATE = 0.1
COST_OUTLIER = 2.0
"""Asking counts as at most so many times what it took before: one of two drafters may be tried now and then."""
SILENCE_RATE = 0.02
MOST_SILENCE = 0.1
"""Share of drafts that may carry no confidences while those of the others decide."""


@dataclass(slots=True)
class SequenceState:
    """What is known of one sequence: tokens and time, both in plain steps, the net benefit of asking, its bias."""

    benefit: float
    tokens: float = SPEEDUP_PRIOR
    time: float = SPEEDUP_PRIOR
    bias: float = 0.0

    @property
    def speedup(self) -> float:
        """Over plain decoding in this batch, of late."""
        return self.tokens / self.time


class Trimmer:
    """Says which sequences to ask about, cuts what is proposed, and learns from what came."""

    def __init__(self, pass_cost: CostCurve) -> None:
        self.pass_cost = pass_cost
        self.calibrator = ConfidenceCalibrator()
        self._silence, self._num_drafts = 1.0, 0  # share of drafts without confidences
        self._states: dict[int, SequenceState] = {}
        self._proposed: dict[int, Draft] = {}
        self._benefit = FIRST_BENEFIT
        self._ask_cost, self._num_asks = 0.0, 0

    @property
    def is_confident(self) -> bool:
        """Almost all drafts carry confidences."""
        return self._silence < MOST_SILENCE

    def follow(self, ids: Iterable[int]) -> None:
        """These sequences run now: forget the others."""
        self._states = {i: self._states.get(i) or SequenceState(self._benefit) for i in ids}

    def wanted(self, ids: Sequence[int]) -> list[int]:
        """The sequences for which the benefit of asking exceeds its cost."""
        cost = self._ask_cost * self._weight_of_time()
        return [i for i in ids if self._states[i].benefit >= cost]

    def trim(self, drafts: dict[int, Draft]) -> dict[int, Draft]:
        """Cut the drafts to their best nodes; those without confidences stay whole."""
        for draft in filter(len, drafts.values()):
            self._num_drafts += 1
            miss = (draft.confidence is None) - self._silence
            self._silence += miss * max(SILENCE_RATE, 1 / self._num_drafts)
        self._proposed = {i: d for i, d in drafts.items() if d.confidence is not None}
        num_rows = len(self._states) + sum(
            len(draft) for i, draft in drafts.items() if i not in self._proposed
        )
        increments = [
            each for i, draft in self._proposed.items() for each in self._increments(i, draft)
        ]
        taken, row_cost = self._choose(increments, num_rows)
        budgets = dict.fromkeys(self._proposed, 0) | {each.seq_id: each.budget for each in taken}
        for i in drafts:
            self._value(i, [each for each in taken if each.seq_id == i], row_cost)
        return {i: d.trim(budgets[i]) if i in budgets else d for i, d in drafts.items()}

    def learn(
        self, results: Sequence[DraftResult], cost: float | None, ask_cost: float | None
    ) -> None:
        """What came of a step: its cost in plain passes of the batch, and that of asking about one sequence."""
        for result in results:
            state = self._states.get(result.seq_id)
            if state is None:
                continue
            draft = self._proposed.get(result.seq_id)
            if draft is not None:
                state.bias = self.calibrator.judge(draft, result.tokens, state.bias)
            if cost is not None:
                state.tokens = state.tokens * SPEEDUP_MEMORY + 1 + len(result.path)
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

    def _increments(self, seq_id: int, draft: Draft) -> list[Increment]:
        state = self._states[seq_id]
        weight = state.speedup**-ALPHA
        reach = self.calibrator.reach(draft, state.bias)
        return concave_envelope(seq_id, ((chance * weight, 1.0) for chance in reach))

    def _choose(self, increments: list[Increment], num_rows: int) -> tuple[list[Increment], float]:
        """The increments with the most tokens a row, while the net gain grows, and the cost of a row."""
        order = sorted(increments, key=lambda each: -each.ratio)
        weight, plain = self._weight_of_time(), self.pass_cost.predict(num_rows)
        tokens = rows = most = cost = 0.0
        best, row_cost = 0, 0.0
        for stop, each in enumerate(order, 1):
            tokens, rows = tokens + each.tokens, rows + each.rows
            cost = weight * max(0.0, self.pass_cost.predict(num_rows + rows) - plain)
            if tokens - cost > most:
                best, most, row_cost = stop, tokens - cost, cost / rows
        return order[:best], row_cost

    def _value(self, seq_id: int, taken: list[Increment], row_cost: float) -> None:
        """Learn what asking brought: the net gain of the kept nodes."""
        net = sum(each.tokens - row_cost * each.rows for each in taken)
        state = self._states[seq_id]
        state.benefit += (net - state.benefit) * (1 - BENEFIT_MEMORY)
        self._benefit += (net - self._benefit) * (1 - BENEFIT_MEMORY_OF_ALL)
