"""Two drafters run side by side: what both ways of uniting their trees have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forerun.core.errors import ConfigError
from forerun.core.types import Draft, Features, Outcome, Seq
from forerun.drafting.base import Drafter, DrafterBytes


class Pair(Drafter):
    """Both see everything that happens; how their drafts become one is what `propose` adds."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = self.parts = first, second
        self.features = common_features(first.features, second.features)
        self.draws = first.draws or second.draws

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Both take the sequence."""
        for part in (self.first, self.second):
            part.begin(seq, _seen_by(part, outcome))

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Tell both: of the one draft they made together."""
        for part in (self.first, self.second):
            part.observe(seqs, drafts, [_seen_by(part, outcome) for outcome in outcomes])

    def end(self, seq: Seq) -> None:
        """Both forget the sequence."""
        self.first.end(seq)
        self.second.end(seq)

    def idle(self) -> bool:
        """A step of the first that has something to do."""
        return self.first.idle() or self.second.idle()

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """What both hold, by kind."""
        parts = (part.memory(num_seqs, max_len) for part in self.parts)
        return DrafterBytes(*map(sum, zip(*parts, strict=True)))


def common_features(first: Features, second: Features) -> Features:
    """What both want to see of the target's pass. Raises ConfigError if that differs."""
    wanted = {(f.last, f.layers) for f in (first, second)} - {(False, ())}
    if len(wanted) > 1:
        raise ConfigError("these drafters want to see different layers of the model: choose one")
    last, layers = wanted.pop() if wanted else (False, ())
    top_k = max(first.top_k, second.top_k)
    return Features(last, layers, first.whole_prompt or second.whole_prompt, top_k)


def _seen_by(part: Drafter, outcome: Outcome) -> Outcome:
    """The outcome with as many of the likeliest tokens as this drafter asked for."""
    k = part.features.top_k
    if outcome.top is None or k == outcome.top.ids.shape[1]:
        return outcome
    return replace(outcome, top=outcome.top.part(range(len(outcome.top.ids)), k) if k else None)
