"""No drafting: the empty tree every step, which is plain decoding on the very same path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.types import EMPTY_DRAFT, NO_FEATURES, Draft, Outcome, Seq
from forerun.drafters.base import Target


@dataclass(frozen=True, slots=True)
class Options:
    """Nothing to choose."""


def build(options: Options, target: Target) -> NoDrafter:
    """The drafter that never guesses."""
    return NoDrafter()


class NoDrafter:
    """Proposes nothing, keeps nothing."""

    features = NO_FEATURES

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Nothing to prepare."""

    def propose(self, seqs: Sequence[Seq], budget: int) -> list[Draft]:
        """Empty trees."""
        return [EMPTY_DRAFT for _ in seqs]

    def observe(self, seqs: Sequence[Seq], outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn."""

    def end(self, seq: Seq) -> None:
        """Nothing to forget."""

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """Nothing is held."""
        return 0
