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

from bisect import bisect
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter, sub
from statistics import median
from typing import Protocol

from forerun.core.costs import DECAY, PRIOR_WEIGHT, CostCurve, DecayedMeans
from forerun.core.types import Draft
from forerun.engine.model_price import DraftValues, ModelPrice
from forerun.engine.sequence import SequenceStep

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
CONFIDENCE_WEIGHT = 2.0
"""Cases that a stated confidence weighs as much as."""
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
        drafter's models costs.
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
        self._acceptance = AcceptanceRates(), AcceptanceRates()
        """Of drafts without models and with them."""
        self._values = DraftValues()
        """What the first, second, ... node of drafts added, in tokens net of their rows' time."""
        self._models = ModelPrice(model_step_cost)
        self._of_seqs: dict[int, DraftValues] = {}
        """The same of each sequence that may draft, by its id."""
        self._num = 0
        """Sequences that decode in the step, those without drafts too; 0 if none may draft."""
        self._is_reading = self._is_trial = False
        self._tokens = self._time = 1 / (
            1 - DECAY
        )  # of a sequence; time in plain passes of its batch
        self._asked_before: frozenset[int] = frozenset()
        self._since_plain, self._reserve, self._trial_steps = 0, RESERVE, 0

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        """Set how many nodes pay, or a trial."""
        before, self._num = self._of_seqs, len(steps) + num_others
        self._is_reading = is_reading
        self._of_seqs = {i: before.get(i) or DraftValues() for i in (s.seq.id for s in steps)}
        lengths = [len(step.seq.tokens) for step in steps]
        self._row_cost = self._cost_above(sum(lengths) // max(len(steps), 1))
        speedup = self._tokens / self._time  # over plain decoding in the batch, lately
        self._price = MARGIN * self._num * speedup / self._pass(self._num)
        found = self._best_lengths(self._of_seqs.values(), 0)
        planned = [best for best, _ in found]
        if self._knows_asking and any(step.num_unread is not None for step in steps):
            planned = [*map(self._with_models, steps, self._of_seqs.values(), found)]
        budgets = self._trial(planned)
        self._is_trial = budgets != planned
        for step, budget in zip(steps, budgets, strict=True):
            step.budget = budget

    def trim(self, steps: Sequence[SequenceStep]) -> None:
        """Keep the nodes that are worth their rows."""
        paths = [self._acceptance[step.asks_models].paths(step.draft) for step in steps]
        sizes = range(self._num, self._num + sum(map(len, paths)) + 1)
        row_cost, price = self._row_cost, self._price
        costs = [c + row_cost * n for c, n in zip(self.pass_cost.each(sizes), sizes, strict=True)]
        kept = best_cut(paths, [price * cost for cost in costs])
        num_kept = sum(kept)
        row = price * max(0.0, costs[num_kept] - costs[0]) / max(num_kept, 1)
        known = max(len(values.weights) for values in self._values.by_mode)
        longest = max([1, known, *map(len, paths)])
        for step, path, length in zip(steps, paths, kept, strict=True):
            if length < len(step.draft):
                step.draft = step.draft.trim(length)
            if step.budget:  # nodes that were cut or missing added nothing
                values = [p - row for p in path[:length]]
                values += [0.0] * (min(longest, step.budget) - length)
                own, mode = self._of_seqs[step.seq.id], step.asks_models
                own.by_mode[mode].record_each(values)
                self._values.by_mode[mode].record_each(values)
                if mode:
                    self._models.record_steps(own, step.num_model_steps)

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
            self._acceptance[step.asks_models].record(step.proposed, step.outcome.emitted)
        if (self._unit_s or self._rough_s) and self._num:
            asked = draft_s / (self._unit_s or self._rough_s)
            time = (asked + self._pass(num_rows - num_read)) / self._pass(self._num)
            tokens = 1 + sum(len(step.outcome.path) for step in steps) / self._num
            if self._is_trial:
                self._reserve -= time - tokens / (self._tokens / self._time)
            self._reserve = min(self._reserve + EXPLORATION * time, RESERVE)
            if any(step.num_unread is not None for step in steps):
                loaded_s = sum(step.model_load_s for step in steps)
                self._models.save(time, loaded_s / (self._unit_s or self._rough_s))
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
        gain = most - price * self._models.draft_cost(own) - net
        speed = max(1.0, self._tokens / self._time)
        wants = self._models.decide(step.seq, own, gain, price, speed, step.num_unread)
        step.wants_models, step.asks_models = wants, wants and not step.num_unread
        step.model_cost = price * self._models.step_cost
        return longest or self.longest if step.asks_models else max(planned, int(wants))

    def _best_lengths(self, owns: Collection[DraftValues], mode: int) -> list[tuple[int, float]]:
        """Return how many nodes add most, less what asking for them costs, and that; none while it is unknown.

        `owns` are what the nodes of each sequence's drafts added, without models (mode 0) or with them (1).
        """
        if not self._knows_asking:
            return [(0, 0.0)] * len(owns)
        general = self._values.by_mode
        most = max(len(values.weights) for values in general[: mode + 1]) or 1
        values = general[0].given([FIRST_VALUE / 2**i for i in range(most)], PRIOR_WEIGHT)
        if mode:
            values = general[1].given(values, 1.0)  # a few drafts have to tell
        costs = [self._price * cost for cost in self.draft_cost.each(range(1, most + 1))]
        found = []
        for own in owns:
            added = accumulate(own.by_mode[mode].given(values, PRIOR_WEIGHT))
            nets = [0.0, *map(sub, added, costs)]
            best = nets.index(max(nets))
            found.append((best if best < most or not best else self.longest, nets[best]))
        return found

    def _trial(self, planned: list[int]) -> list[int]:
        """Return plain passes at first and now and then, or larger questions, if there is time for trials.

        A larger question is of twice as many nodes; of all if that is as many as drafts have, or before any draft.
        """
        is_known = self._unit_s or (self._is_reading and self._rough_s)
        if not is_known or (self._reserve >= 0 and self._since_plain >= PLAIN_EVERY):
            return [0] * len(planned)
        if self._reserve < 0 and not self._knows_asking:
            return [1] * len(planned)  # the smallest question tells what asking costs
        most = max(len(values.weights) for values in self._values.by_mode) or 1
        larger = [2 * k if 0 < 2 * k < most else self.longest for k in planned]
        if not self._trial_steps:
            if self._reserve < 0 or larger == planned:
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
        asked = frozenset(step.seq.id for step in steps if step.budget)
        before, self._asked_before = self._asked_before, asked
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
        if asked and asked <= before:
            nodes = sum(len(step.proposed) for step in steps)
            mean, cost = round(nodes / len(asked)), draft_s / unit_s / len(asked)
            num_steps = sum(step.num_model_steps for step in steps)
            num_model_read = sum(step.num_model_read for step in steps)
            if num_steps or num_model_read:
                of_models = len(asked) * (cost - self.draft_cost.predict(mean))
                self._models.record_cost(of_models, num_steps, num_model_read)
                return
            self.draft_cost.record(mean, cost)
            if not self._knows_asking:
                self._knows_asking, self._trial_steps = True, 0


def best_cut(paths: Sequence[Sequence[float]], costs: Sequence[float]) -> list[int]:
    """Return how many nodes of each draft to verify, given their path probabilities.

    Nodes are taken in descending order, each after those before it in its draft; `costs[k]` is that of a pass with k
    nodes, in tokens.

    >>> best_cut([[0.9, 0.1], [0.6, 0.5]], [1.0, 1.2, 1.4, 1.8, 2.9])
    [1, 2]
    """
    nodes = [
        (least, i, p)
        for i, path in enumerate(paths)
        for least, p in zip(accumulate(path, min), path, strict=True)
    ]
    nodes.sort(key=itemgetter(0), reverse=True)  # equal ones stay in their order
    added = accumulate([p for *_, p in nodes], initial=0.0)
    nets = [*map(sub, added, costs)]
    kept = [0] * len(paths)
    for _, i, _ in nodes[: nets.index(max(nets))]:
        kept[i] += 1
    return kept


LEVEL_ENDS = [1 / (1 + 2.0**-odds) for odds in (level - 7.5 for level in range(16))]
level_of = partial(bisect, LEVEL_ENDS)
"""The level of a confidence, from 0 to 16: each is as wide as a factor of two in the odds, 8 is about a half."""


class AcceptanceRates:
    """P(node accepted | parent accepted), learned from every draft of one drafter, verified or not.

    Nodes of about the same confidence are counted together, or, if the drafter states none, those of one index. A
    rate begins with what was stated; without confidence with a half.
    """

    def __init__(self) -> None:
        self._by_confidence, self._by_index = DecayedMeans(), DecayedMeans()

    def paths(self, draft: Draft) -> list[float]:
        """Return P(node accepted) of every node: the product of the rates on the path to it."""
        if (stated := draft.confidence) is None:
            rates = self._by_index.given((0.5,) * len(draft), CONFIDENCE_WEIGHT)
        else:
            rates = self._by_confidence.given(stated, CONFIDENCE_WEIGHT, map(level_of, stated))
        products: list[float] = []
        for parent, rate in zip(draft.parents, rates, strict=True):
            products.append(rate * products[parent] if parent >= 0 else rate)
        return products

    def record(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Compare a draft, cut or not, with the tokens that came."""
        matches = draft.matches(tokens)
        if draft.confidence is None:
            self._by_index.record(matches)
        else:
            stated = draft.confidence
            self._by_confidence.record(
                [(level_of(stated[node]), is_hit) for node, is_hit in matches]
            )
