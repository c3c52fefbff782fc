"""No drafting: the empty tree every step, which is plain decoding on the very same path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.drafters.base import BaseDrafter, Target


@dataclass(frozen=True, slots=True)
class Options:
    """Nothing to choose."""


def build(options: Options, target: Target) -> NoDrafter:
    """The drafter that never guesses."""
    return NoDrafter()


class NoDrafter(BaseDrafter):
    """Proposes nothing, keeps nothing."""

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Empty trees."""
        return [EMPTY_DRAFT for _ in seqs]
