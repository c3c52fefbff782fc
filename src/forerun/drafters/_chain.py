"""Two drafters, one voice: the first speaks where it expects to be right at least as long as the second.

Made for a drafter that costs nothing and is silent most of the time (`suffix`), before one that
costs something and always has an answer (`draft_model`, `lookahead`). The first is always asked.
Its draft is taken if drafts of that size were accepted, of late, for at least as many tokens as the
second's drafts are; otherwise the second is asked, and only then. The choice looks at sizes and at
the past, never at tokens that were drawn, so the law of the output is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.core.errors import ConfigError
from forerun.core.types import NO_FEATURES, Draft, Features, Outcome, Seq
from forerun.drafters.base import Drafter

MEMORY = 0.95
"""What a draft counts for after one more of its size."""
PRIOR = 0.5
"""Share of a draft that is expected to be accepted before any was; weighs as much as two drafts."""


@dataclass(slots=True)
class Expectation:
    """Accepted tokens of drafts by their size: decayed means."""

    weights: dict[int, float] = field(default_factory=dict)
    sums: dict[int, float] = field(default_factory=dict)

    def record(self, num_nodes: int, num_accepted: int) -> None:
        """Learn what became of one draft."""
        self.weights[num_nodes] = self.weights.get(num_nodes, 0.0) * MEMORY + 1
        self.sums[num_nodes] = self.sums.get(num_nodes, 0.0) * MEMORY + num_accepted

    def of(self, num_nodes: int) -> float:
        """Tokens expected of a draft of that size."""
        weight = self.weights.get(num_nodes, 0.0) + 2
        return (self.sums.get(num_nodes, 0.0) + 2 * PRIOR * num_nodes) / weight


class Chain:
    """Asks `first`, and `second` where it expects more of it."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.features = common_features(first.features, second.features)
        self.draws = any(getattr(drafter, "draws", False) for drafter in (first, second))
        self._of_first, self._of_second = Expectation(), Expectation()
        self._usual = 0  # size of the second's last draft
        self._by_second: dict[int, bool] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Both take the sequence."""
        self.first.begin(seq, outcome)
        self.second.begin(seq, outcome)

    def propose(self, seqs: Sequence[Seq], budget: int) -> list[Draft]:
        """The first's drafts, or the second's where the first's are expected to be accepted less far."""
        drafts = {seq.id: d for seq, d in zip(seqs, self.first.propose(seqs, budget), strict=True)}
        wanted = self._of_second.of(min(self._usual, budget)) if self._usual else 0.0
        weak = [s for s in seqs if not len(d := drafts[s.id]) or self._of_first.of(len(d)) < wanted]
        self._by_second = dict.fromkeys(drafts, False)
        for seq, draft in zip(weak, self.second.propose(weak, budget) if weak else (), strict=True):
            if len(draft):
                drafts[seq.id] = draft
                self._by_second[seq.id] = True
                self._usual = len(draft)
        return [drafts[seq.id] for seq in seqs]

    def observe(self, seqs: Sequence[Seq], outcomes: Sequence[Outcome]) -> None:
        """Learn who was right how far, and tell both."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            num_nodes = outcome.num_nodes
            if num_nodes and seq.id in self._by_second:
                part = self._of_second if self._by_second[seq.id] else self._of_first
                part.record(num_nodes, len(outcome.path))
        self._by_second = {}
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
