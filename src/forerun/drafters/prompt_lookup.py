"""Prompt lookup: `suffix` on the request's own text alone, under the names that other engines give its options.

What followed the last few tokens before is likely to follow them again: summaries, code edits, answers that quote the
question.

Source: prompt lookup decoding (A. Saxena, 2023), also known as n-gram speculation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.core.errors import ConfigError
from forerun.drafters.base.contract import Drafter, Method, Target, as_given
from forerun.drafters.base.find import find


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to look and how much to copy."""

    ngram_max: int = 64
    """Longest run of last tokens that is looked up; tried first."""
    ngram_min: int = 1
    """Shortest run that is looked up."""
    num_draft: int = 7
    """Tokens copied at most."""
    factor: float = 1.0
    """Tokens copied for each token that matches: a longer match is followed further."""

    def __post_init__(self) -> None:
        if not 1 <= self.ngram_min <= self.ngram_max:
            raise ConfigError(
                f"ngram_min={self.ngram_min}, ngram_max={self.ngram_max}: "
                "give 1 <= ngram_min <= ngram_max",
                option="ngram_min",
            )
        self.as_suffix()

    def as_suffix(self) -> Any:
        """Return the options of `suffix` that these are."""
        return find("suffix").Options(
            min_depth=self.ngram_min,
            max_depth=self.ngram_max,
            num_draft=self.num_draft,
            factor=self.factor,
            shared_tokens=0,
        )


def build(options: Options, target: Target) -> Drafter:
    """Build a drafter that needs nothing of the target."""
    drafter: Drafter = find("suffix").build(options.as_suffix(), target)
    return drafter


METHOD = Method(
    unshared=as_given,
    grids={"num_draft": (1, 2, 3, 5, 7, 11, 15, 23), "factor": (0.5, 1.0, 2.0, 4.0)},
)
