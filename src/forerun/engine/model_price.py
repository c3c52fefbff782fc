"""Whether a drafter's models are asked: what a step of them and a token that they read cost, and what they brought.

A draft with models brings more and costs their steps, and before the first one they read the text. So they are asked
in a sequence where

    net(with) - price * steps * step_cost > net(without) + LEAST_GAIN,

and where what the drafts to come gain that way is more than the reading costs. An answer is taken to go on for as long
as it is, and at least for `LEAST_LEFT` tokens. What is not tried is not learned: trials take a fixed share of the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from forerun.core.costs import PRIOR_WEIGHT, DecayedMeans
from forerun.core.types import Seq

EXPLORATION = 0.005
"""Share of the time for trials."""
RESERVE = 4.0
"""Plain passes that are saved for trials, at most and at first."""
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
WINDOW = 9
"""Measurements whose median is a cost: the first ones read weights that are not in memory."""


@dataclass(slots=True)
class DraftValues:
    """What the first, second, ... node of drafts added, without models and with them, and the steps of the models."""

    by_mode: tuple[DecayedMeans, DecayedMeans] = field(
        default_factory=lambda: (DecayedMeans(), DecayedMeans())
    )
    steps: DecayedMeans = field(default_factory=DecayedMeans)
    num_with: int = 0
    """Drafts with models that were decided on."""
    num_trials: int = 0
    """Drafts of a trial that are to come."""


class ModelPrice:
    """Learns the costs of models, in plain passes, and decides."""

    def __init__(self, step_cost: float) -> None:
        """Begin with what a step costs by its bytes, which counts as two measurements."""
        self._step_costs = deque([step_cost] * 2, WINDOW)
        self._read_costs = deque([step_cost * FIRST_READ] * 2, WINDOW)
        self._steps = DecayedMeans()
        self._reserve, self._debt = RESERVE, 0.0

    @property
    def step_cost(self) -> float:
        """What a step of a sequence costs."""
        return median(self._step_costs)

    @property
    def read_cost(self) -> float:
        """What a token costs that they read."""
        return median(self._read_costs)

    def draft_cost(self, own: DraftValues) -> float:
        """Return what their steps in a draft of a sequence cost."""
        return (
            self.step_cost
            * own.steps.given(self._steps.given([FIRST_STEPS], PRIOR_WEIGHT), PRIOR_WEIGHT)[0]
        )

    def decide(
        self, seq: Seq, own: DraftValues, gain: float, price: float, speed: float, num_unread: int
    ) -> bool:
        """Decide for a sequence; `gain` is what a draft with them brings more, their steps' cost taken off.

        `price` is the worth of a plain pass's time in tokens, `speed` the tokens of a step.
        """
        answered = len(seq.tokens) - seq.num_prompt
        left = max(LEAST_LEFT, answered)
        if seq.params.max_tokens is not None:
            left = min(left, seq.params.max_tokens - answered)
        reading = self.read_cost * num_unread
        if own.num_trials and self._reserve > 0:
            if not num_unread:
                own.num_trials -= 1
                self._reserve -= self.draft_cost(own)
            return True
        own.num_trials = 0
        if gain > LEAST_GAIN and gain * left / speed > price * reading:
            own.num_with += 1
            return own.num_with % WITHOUT_EVERY > 0
        cost = reading + TRIAL_DRAFTS * self.draft_cost(own)
        is_affordable = self._reserve >= cost and left > 2 * TRIAL_DRAFTS
        if is_affordable:
            self._reserve -= reading
            own.num_trials = TRIAL_DRAFTS
        return is_affordable

    def record_steps(self, own: DraftValues, num_steps: int) -> None:
        """Learn how many steps a draft took."""
        for steps in (own.steps, self._steps):
            steps.record([(0, num_steps)])

    def record_cost(self, cost: float, num_steps: int, num_read: int) -> None:
        """Learn what the models took of a step's drafts."""
        if num_read:
            self._read_costs.append(max(0.0, cost - num_steps * self.step_cost) / num_read)
        elif num_steps:
            self._step_costs.append(max(0.0, cost) / num_steps)

    def save(self, time: float, owed: float = 0.0) -> None:
        """Save a share of the time for trials, once it has paid what is owed: the loading of models."""
        saved = EXPLORATION * time
        paid = min(saved, self._debt + owed)
        self._debt += owed - paid
        self._reserve = min(self._reserve + saved - paid, RESERVE)
