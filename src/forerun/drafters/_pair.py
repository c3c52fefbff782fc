"""Two drafters run side by side: what every way of combining them has in common."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.errors import ConfigError
from forerun.core.types import NO_FEATURES, Features, Outcome, Seq
from forerun.drafters.base import Drafter


class Pair:
    """Both see everything that happens; how their drafts become one is what `propose` adds."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.features = common_features(first.features, second.features)
        self.draws = any(getattr(drafter, "draws", False) for drafter in (first, second))

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Both take the sequence."""
        self.first.begin(seq, outcome)
        self.second.begin(seq, outcome)

    def observe(self, seqs: Sequence[Seq], outcomes: Sequence[Outcome]) -> None:
        """Tell both."""
        self.first.observe(seqs, outcomes)
        self.second.observe(seqs, outcomes)

    def end(self, seq: Seq) -> None:
        """Both forget the sequence."""
        self.first.end(seq)
        self.second.end(seq)

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """What both hold."""
        return self.first.nbytes(num_seqs, max_len) + self.second.nbytes(num_seqs, max_len)


def common_features(first: Features, second: Features) -> Features:
    """What both want to see of the target's pass. Raises ConfigError if that differs."""
    if first != second and NO_FEATURES not in (first, second):
        raise ConfigError("these drafters want to see different layers of the model: choose one")
    return second if first == NO_FEATURES else first
