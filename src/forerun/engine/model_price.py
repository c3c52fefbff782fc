"""Whether a drafter's models are asked: what a step of them and a token that they read cost, and what they brought.

A draft with models brings more and costs their steps, and before the first one they read the text. So they are asked
in a sequence where

    net(with) - price * steps * step_cost > net(without) + LEAST_GAIN,

and where what the drafts to come gain that way is more than the reading costs. An answer is taken to go on for as long
as it is, and at least for `LEAST_LEFT` tokens. What is not tried is not learned: trials draw on the one `Reserve`.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.costs import PRIOR_WEIGHT
from forerun.core.types import Seq

EXPLORATION = 0.004
"""Share of the time for trials."""
RESERVE = 0.5
"""Plain passes that are saved for trials, at most and at first."""
MOST_TRIAL = 4.0
"""Plain passes that a trial of models is expected to take at most: it borrows them, and others wait."""
TRIAL_DRAFTS = 4
"""Drafts of a trial in a sequence."""
WITHOUT_EVERY = 24
"""Drafts with models after which one without them says again what they add."""
FIRST_READ = 0.12
"""Cost of a token that is read, in steps, before any is measured; prompts are read in parts of many rows."""
FIRST_STEPS = 2.0
"""Steps of a draft before any."""
LEAST_LEFT = 32
LEAST_GAIN = 0.15
"""Tokens a draft: the models' estimates are noisy, and what is read in vain is lost."""


@dataclass(slots=True)
class Reserve:
    """What trials of all kinds may take, in plain passes: one may begin where nothing is left to be paid back."""

    time: float = RESERVE
    is_models_turn: bool = True
    """Since models were tried a larger question could be: neither kind takes all of the time."""


class DraftValues:
    """What the first, second, ... node of drafts added, and how drafts with models come and go in a sequence."""

    def __init__(self) -> None:
        from forerun._native import DecayedMeans

        self.by_mode = DecayedMeans(), DecayedMeans()
        """Without models and with them."""
        self.num_with = 0
        """Drafts with models that were decided on."""
        self.num_trials = 0
        """Drafts of a trial that are to come."""


class ModelPrice:
    """Learns the costs of models, in plain passes, and decides."""

    def __init__(self, step_cost: float, reserve: Reserve) -> None:
        """Begin with what a step costs by its bytes."""
        from forerun._native import CostCurve, DecayedMeans

        self._step_cost = CostCurve({1: step_cost})
        self._read_cost = CostCurve({1: step_cost * FIRST_READ})
        self._steps = DecayedMeans()
        self._reserve = reserve

    @property
    def step_cost(self) -> float:
        """What a step of a sequence costs."""
        return self._step_cost.predict(1)

    @property
    def draft_cost(self) -> float:
        """What their steps in a draft cost."""
        return self.step_cost * self._steps.given([FIRST_STEPS], PRIOR_WEIGHT)[0]

    def decide(
        self, seq: Seq, own: DraftValues, gain: float, price: float, speed: float, num_unread: int
    ) -> bool:
        """Decide for a sequence; `gain` is what a draft with them brings more, their steps' cost taken off.

        `price` is the worth of a plain pass's time in tokens, `speed` the tokens of a step.
        """
        if own.num_trials:
            if not num_unread:
                own.num_trials -= 1
                self._reserve.time -= self.draft_cost
            return True
        answered = len(seq.tokens) - seq.num_prompt
        left = max(LEAST_LEFT, answered)
        if seq.params.max_tokens is not None:
            left = min(left, seq.params.max_tokens - answered)
        reading = self._read_cost.predict(1) * num_unread
        if gain > LEAST_GAIN and gain * left / speed > price * reading:
            own.num_with += 1
            return own.num_with % WITHOUT_EVERY > 0
        reserve, cost = self._reserve, reading + TRIAL_DRAFTS * self.draft_cost
        may_begin = reserve.time >= 0 and reserve.is_models_turn and left > 2 * TRIAL_DRAFTS
        if may_begin and cost <= MOST_TRIAL:
            reserve.time -= reading
            reserve.is_models_turn = False
            own.num_trials = TRIAL_DRAFTS
        return own.num_trials > 0

    def record_steps(self, num_steps: int) -> None:
        """Learn how many steps a draft took."""
        self._steps.record([num_steps])

    def record_cost(self, cost: float, num_steps: int, num_read: int) -> None:
        """Learn what the models took of a step's drafts."""
        if num_read:
            read_s = max(0.0, cost - num_steps * self.step_cost)
            self._read_cost.record(1, read_s / num_read)
        elif num_steps:
            self._step_cost.record(1, max(0.0, cost) / num_steps)
