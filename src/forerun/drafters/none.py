"""No drafting: the empty tree every step, which is plain decoding on the very same path."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.contract import Drafter, Method, Target, as_given


@dataclass(frozen=True, slots=True)
class Options:
    """Plain decoding has no options."""


METHOD = Method(unshared=as_given)


def build(options: Options, target: Target) -> Drafter:
    """Return a drafter that guesses nothing."""
    return Drafter()
