"""What a partner of a tree is worth, learned from the tokens that came: its share, and what its steps bring.

**Share.** A token's chance is (1 - w) p + w q, where others gave it p before and the partner gives it q. The w that
makes the tokens that came likeliest is the mean of w q / ((1 - w) p + w q) over them: the weight of a mixture, by
expectation and maximisation, with older tokens counting less.

**Doubt.** A step is taken where the best guess so far is needed and wrong with some probability, the doubt d. A step
that makes the right token the best guess brings that one and those that the tree has below it, up to where another
step did the same. What steps bring grows with the square of the doubt (over 868 steps of a model 0.10, 0.27, 0.67 and
0.81 tokens at a d of 0.25, 0.45, 0.65 and 0.85): it is gain d², and a step pays where that is more than it costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from forerun.core.costs import PRIOR_WEIGHT

MOST_DOUBT = 0.7
"""A partner is asked from this doubt on, however little its steps have brought: else nothing more would be learned."""
FIRST_SQUARES = 8.0
"""The squares of doubts that what is known beforehand of a partner's gain weighs as much as."""
GAIN_MEMORY = 0.995
"""What a draft counts for after the next one: a step seldom brings a token, so many tell what steps bring."""
Verdict = tuple[int, float, float, float, int]
"""Of a step, by the tokens that came: its partner, the doubt before it, the token's chances before and by it, which are
0 off the right path, and the tokens it brought."""


class PartnerValue:
    """Learns what one partner's word weighs beside those of others, and what its steps bring."""

    def __init__(self, share: float, gain: float) -> None:
        """Begin with a share, and the tokens that a step brings for each doubt squared."""
        from forerun._native import DecayedMeans

        self.share = self._first_share = share
        """Of its word in a probability that others gave before it."""
        self._first_gain = gain
        self._shares = DecayedMeans()
        self._squares, self._brought = FIRST_SQUARES, FIRST_SQUARES * gain

    def doubt(self, least: float, cost: float | None = None) -> float:
        """Return the doubt from which its steps pay, `least` or more.

        `cost` is that of a step in tokens; None: as much as a step at the least doubt is known to bring beforehand.
        """
        cost = self._first_gain * least**2 if cost is None else cost
        gain = self._brought / self._squares
        paying = math.sqrt(cost / gain) if gain > 0 else 1.0
        return max(least, min(paying, MOST_DOUBT))

    def learn(self, steps: Sequence[Verdict]) -> None:
        """Take the partner's steps of a draft."""
        share = self.share
        for _, _, before, own, _ in steps:
            if likely := (1 - share) * before + share * own:
                self._shares.record([share * own / likely])
        self.share = self._shares.given([self._first_share], PRIOR_WEIGHT)[0]
        self._squares = self._squares * GAIN_MEMORY + sum(doubt**2 for _, doubt, *_ in steps)
        self._brought = self._brought * GAIN_MEMORY + sum(brought for *_, brought in steps)
