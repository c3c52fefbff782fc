"""How much to draft: how many nodes to ask a drafter for, and how many of its nodes to verify, none included.

Leviathan et al. (arXiv 2211.17192, theorem 3.8) choose the draft length that emits most tokens a second, given one
acceptance rate and one cost. Here every node has its own probability and every size its measured cost. A step of n
sequences emits one token a sequence and

    sum over the verified nodes of path_probability,   the product of P(accepted | parent accepted) along the path,

and takes pass(n + nodes) + sum ask(nodes asked for), in plain passes of one sequence above no context: of that a pass
costs what its number of rows has cost, and each row its attention to the context. At `rate` tokens a plain pass of
late, a time t is worth rate * t tokens. So the nodes are verified that maximise

    sum path_probability - MARGIN * rate * (pass(n + nodes) - pass(n)),

and as many are asked for as maximise what the first, second, ... node recently added to that, less MARGIN * rate * ask.

What is not tried is not learned: larger questions are tried for a fixed share of the time. Nodes that
were cut are compared with the tokens that came all the same, at no cost. Nothing here reads a clock or draws a number:
the same measurements give the same choices. And none changes a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

from forerun.core.costs import DECAY, PRIOR_WEIGHT
from forerun.engine.model_price import EXPLORATION, RESERVE, DraftValues, ModelPrice, Reserve
from forerun.engine.sequence import SequenceStep

MARGIN = 1.25
"""The best of many estimates is overestimated."""
TRIAL_STEPS = 2
"""A drafter's first draft after a pause is slow, it has to read what it missed."""
PLAIN_EVERY = 64
"""Steps after which a plain pass is worth a trial: the unit of all costs."""
PLAIN_FIRST = 2
"""Plain passes that a process begins with: the unit of all costs."""
LAST_PASSES = 5
"""Passes whose median is the machine's present speed."""
FIRST_COSTS = {1: 1.0, 4: 1.15, 16: 2.0}
"""Cost of a pass by its rows before any is measured: nearly free up to four."""
FIRST_VALUE = 0.5
"""What the first node is taken to add before any draft; each further one half as much."""


class Controller(Protocol):
    """Chooses how much to draft, from what earlier drafts cost and brought."""

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        """Set the `budget` of each step: how many nodes its sequence may draft.

        `num_others` sequences decode in the same pass without drafts; `is_reading`: the pass reads prompts, too.
        """
        ...

    def trim(self, steps: Sequence[SequenceStep]) -> None:
        """Cut each step's `draft`, so far what was `proposed`, to what is verified: all unless a controller cuts."""
        return

    def learn(
        self,
        steps: Sequence[SequenceStep],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int = 0,
    ) -> None:
        """Learn from the outcomes of a pass, which had `num_rows` rows, `num_read` of them of prompts."""
        return


@dataclass(frozen=True, slots=True)
class Fixed(Controller):
    """The same budget for every sequence, always."""

    budget: int

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        """Set the same budget for every sequence."""
        for step in steps:
            step.budget, step.wants_models = self.budget, True


class Adaptive(Controller):
    """Chooses what maximises expected tokens a second; `longest` is the largest draft."""

    def __init__(
        self,
        longest: int,
        pass_cost: Mapping[int, float] | None = None,
        row_cost: Callable[[int], float] = lambda context: 0.0,
        model_step_cost: float = 0.0,
    ) -> None:
        """Begin with the cost of passes by their rows, in plain passes; measurements take its place.

        `row_cost` is what a row costs more above so many tokens of context, `model_step_cost` what a step of the
        drafter's models costs. It needs the native library.
        """
        from forerun import _native

        self.longest = longest
        self._cost_above, self._row_cost = row_cost, 0.0
        self.pass_cost = _native.CostCurve(pass_cost or FIRST_COSTS)
        self.draft_cost = _native.CostCurve()
        self.draft_cost.record(0, 0.0)  # until measured, a smaller draft costs less
        self._unit_s = 0.0
        """Seconds of a plain pass at the machine's present speed; 0 before it is known."""
        self._units = deque[float](maxlen=LAST_PASSES)
        self._knows_asking = False
        self._best_cut = _native.best_cut
        self._acceptance = _native.AcceptanceRates(), _native.AcceptanceRates()
        """Of drafts without models and with them."""
        self._values = DraftValues()
        """What the first, second, ... node of drafts added, in tokens net of their rows' time."""
        self._first_values = [FIRST_VALUE / 2**i for i in range(longest + 1)]
        self._most = [0, 0]
        """Nodes of the largest draft without models, and with them."""
        self._of_seqs: dict[int, DraftValues] = {}
        """The same of each sequence that may draft, by its id."""
        self._reserve = Reserve()
        self._models = ModelPrice(model_step_cost, self._reserve)
        self._num = 0
        """Sequences that decode in the step, those without drafts too; 0 if none may draft."""
        self._is_reading = self._is_trial = False
        self._tokens = self._time = 1 / (1 - DECAY)
        """Tokens of a sequence, and their time in plain passes of its batch: the older count less."""
        self._asked_before: frozenset[int] = frozenset()
        self._since_plain = self._trial_steps = 0

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        """Set how many nodes pay, or a trial."""
        before, self._num, self._is_reading = self._of_seqs, len(steps) + num_others, is_reading
        owns = [before.get(step.seq.id) or DraftValues() for step in steps]
        self._of_seqs = {step.seq.id: own for step, own in zip(steps, owns, strict=True)}
        context = sum([len(step.seq.tokens) for step in steps]) // max(len(steps), 1)
        self._row_cost = self._cost_above(context)
        self._price = MARGIN * self._num * self._tokens / self._time / self._pass(self._num)
        planned = [0] * len(steps)
        if self._knows_asking:
            found = self._best_lengths(owns, 0)
            planned = [best for best, _ in found]
            if any(step.num_unread is not None for step in steps):
                planned = [*map(self._with_models, steps, owns, found)]
        budgets = self._trial(planned)
        self._is_trial = budgets != planned
        for step, budget in zip(steps, budgets, strict=True):
            step.budget = budget

    def trim(self, steps: Sequence[SequenceStep]) -> None:
        """Keep the nodes that are worth their rows."""
        rates = self._acceptance
        paths = [
            rates[step.asks_models].paths(step.draft.parents, step.draft.confidence)
            for step in steps
        ]
        cost = self._num, self._row_cost, self._price
        kept, row = self._best_cut(paths, self.pass_cost, *cost)
        longest = max(1, *self._most, *map(len, paths))
        for step, path, length in zip(steps, paths, kept, strict=True):
            if length < len(path):
                step.draft = step.draft.trim(length)
            if step.budget:  # nodes that were cut or missing added nothing
                count, mode = min(longest, step.budget), step.asks_models
                for each in (self._of_seqs[step.seq.id], self._values):
                    each.by_mode[mode].record(path[:length], row, count)
                self._most[mode] = max(self._most[mode], length, count)
                if mode:
                    self._models.record_steps(step.num_model_steps)

    def learn(
        self,
        steps: Sequence[SequenceStep],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int = 0,
    ) -> None:
        """Update probabilities, costs, the rate and what is saved for trials.

        A trial takes out the time that went beyond what its tokens take at the present speed.
        """
        self._measure(steps, num_rows, draft_s, pass_s, num_read)
        for step in steps:
            draft, emitted = step.proposed, step.outcome.emitted
            if draft.tokens:
                rates = self._acceptance[step.asks_models]
                rates.record(draft.tokens, draft.parents, draft.confidence, emitted)
        if self._unit_s and self._num:
            reserve, passes = self._reserve, self._pass(num_rows - num_read)
            time = (draft_s / self._unit_s + passes) / self._pass(self._num)
            tokens = 1 + sum([len(step.outcome.path) for step in steps]) / self._num
            if self._is_trial:
                reserve.time -= time - tokens / (self._tokens / self._time)
            loaded = sum([step.model_load_s for step in steps]) / self._unit_s
            reserve.time = min(reserve.time + EXPLORATION * time, RESERVE) - loaded
            self._tokens, self._time = self._tokens * DECAY + tokens, self._time * DECAY + time
        self._num, self._is_trial = 0, False

    def _pass(self, num_rows: int) -> float:
        """Return what a pass of so many rows costs above the present context."""
        return self.pass_cost.predict(num_rows) + self._row_cost * num_rows

    def _with_models(self, step: SequenceStep, own: DraftValues, without: tuple[int, float]) -> int:
        """Let models take part where that adds more; return how many nodes to ask for."""
        planned, net = without
        if step.num_unread is None:
            return planned
        ((longest, most),), price = self._best_lengths([own], 1), self._price
        gain = most - price * self._models.draft_cost - net
        speed = max(1.0, self._tokens / self._time)
        wants = self._models.decide(step.seq, own, gain, price, speed, step.num_unread)
        step.wants_models, step.asks_models = wants, wants and not step.num_unread
        step.model_cost = price * self._models.step_cost
        return longest or self.longest if step.asks_models else max(planned, int(wants))

    def _best_lengths(self, owns: Collection[DraftValues], mode: int) -> list[tuple[int, float]]:
        """Return how many nodes add most, less what asking for them costs, and that.

        `owns` are what the nodes of each sequence's drafts added, without models (mode 0) or with them (1).
        """
        general = self._values.by_mode
        most = max(self._most[: mode + 1]) or 1
        values = general[0].given(self._first_values[:most], PRIOR_WEIGHT)
        if mode:
            values = general[1].given(values, 1.0)  # a few drafts have to tell
        cost = self.draft_cost, self._price
        found = [own.by_mode[mode].best_prefix(values, PRIOR_WEIGHT, *cost) for own in owns]
        return [(k if k < most else self.longest, net) for k, net in found]

    def _trial(self, planned: list[int]) -> list[int]:
        """Return plain passes at first and now and then, or larger questions, if there is time for trials.

        A larger question is of twice as many nodes; of all if that is as many as drafts have, or before any draft.
        """
        has_time = self._reserve.time >= 0
        is_known = len(self._units) >= PLAIN_FIRST or (self._is_reading and self._unit_s)
        if not is_known or (has_time and self._since_plain >= PLAIN_EVERY):
            return [0] * len(planned)
        if not has_time and not self._knows_asking:
            return [1] * len(planned)  # the smallest question tells what asking costs
        most = max(self._most) or 1
        larger = [2 * k if 0 < 2 * k < most else self.longest for k in planned]
        if not self._trial_steps:
            if not has_time:
                return planned
            self._reserve.is_models_turn = True
            if larger == planned:
                return planned
            self._trial_steps = TRIAL_STEPS
        self._trial_steps -= 1
        return larger

    def _measure(
        self,
        steps: Sequence[SequenceStep],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int,
    ) -> None:
        """Learn the costs, in units of the machine's present speed.

        Of passes that read prompts only what asking costs: of small passes they tell little, and roughly the unit.
        """
        asked = frozenset([step.seq.id for step in steps if step.budget])
        before, self._asked_before = self._asked_before, asked
        is_plain = self._num > 0 and num_rows - num_read == self._num
        self._since_plain = 0 if is_plain else self._since_plain + 1
        units, found_s = self._units, pass_s / self._pass(num_rows)
        if num_read:
            if is_plain and not units:
                self._unit_s = min(found_s, self._unit_s or found_s)
        elif self.pass_cost.knows(num_rows) or (is_plain and len(units) < PLAIN_FIRST):
            units.append(found_s)
        if units:
            self._unit_s = median_low(units)
        if not (unit_s := self._unit_s):
            return
        if not num_read:
            self.pass_cost.record(num_rows, max(0.0, pass_s / unit_s - self._row_cost * num_rows))
        if asked and asked <= before:
            nodes = sum([len(step.proposed.tokens) for step in steps])
            mean, cost = round(nodes / len(asked)), draft_s / unit_s / len(asked)
            num_steps = sum([step.num_model_steps for step in steps])
            num_model_read = sum([step.num_model_read for step in steps])
            if num_steps or num_model_read:
                of_models = len(asked) * (cost - self.draft_cost.predict(mean))
                self._models.record_cost(of_models, num_steps, num_model_read)
                return
            self.draft_cost.record(mean, cost)
            if not self._knows_asking:
                self._knows_asking, self._trial_steps = True, 0
