"""Prompt lookup: what followed the last few tokens last time is likely to follow them again.

No model, no training: an index from every n-gram of the sequence to its most recent end. It copies
what is repeated (summaries, code edits, answers that quote the question) and guesses nothing where
nothing repeats. It looks at one sequence only; `suffix` also learns from other requests.

Source: prompt lookup decoding (A. Saxena, 2023), also known as n-gram speculation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.core import tree
from forerun.core.errors import ConfigError, check_least
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafting.base import Drafter, DrafterBytes, Method, Target, as_given

ENTRY_NBYTES = 136
"""Bytes of one n-gram in the index at most, besides 8 for each of its tokens: its share of a dict
that has just grown (62), the tuple (40), and the position (32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to look and how much to copy."""

    ngram_max: int = 3
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
        check_least("num_draft", self.num_draft, 1)
        if not self.factor > 0:
            raise ConfigError(f"factor must be above 0, got {self.factor}")


def build(options: Options, target: Target) -> PromptLookup:
    """Build a drafter that needs nothing of the target."""
    return PromptLookup(options)


METHOD = Method(
    unshared=as_given,
    grids={
        "num_draft": (1, 2, 3, 5, 7, 11, 15, 23),
        "factor": (0.5, 1.0, 2.0, 4.0),
        "ngram_max": (2, 3, 4, 6),
        "ngram_min": (1, 2, 3),
    },
)


@dataclass(slots=True)
class NgramIndex:
    """Where each n-gram of one sequence ended most recently: O(1) a token, O(1) a look-up."""

    shortest: int
    longest: int
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_indexed: int = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that something follows: those that end before the last token."""
        for end in range(self.num_indexed + 1, len(tokens)):
            for n in range(self.shortest, min(self.longest, end) + 1):
                self.ends[tuple(tokens[end - n : end])] = end
        self.num_indexed = max(self.num_indexed, len(tokens) - 1)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the position of the token that followed the longest indexed run of last tokens, if any."""
        for n in range(min(self.longest, len(tokens)), self.shortest - 1, -1):
            end = self.ends.get(tuple(tokens[-n:]))
            if end is not None:
                return end
        return None


class PromptLookup(Drafter):
    """Copies the continuation of the most recent earlier occurrence of the last tokens."""

    def __init__(self, options: Options) -> None:
        self.options, self.max_nodes = options, options.num_draft
        self.indexes: dict[int, NgramIndex] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Start an index; `propose` fills it, so a sequence may come back at any length."""
        self.indexes[seq.id] = NgramIndex(self.options.ngram_min, self.options.ngram_max)

    def end(self, seq: Seq) -> None:
        """Drop the sequence's n-gram index."""
        self.indexes.pop(seq.id, None)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the indexes of full sequences in which no n-gram repeats."""
        lengths = range(self.options.ngram_min, self.options.ngram_max + 1)
        per_token = sum(ENTRY_NBYTES + 8 * n for n in lengths)
        return DrafterBytes(tables=num_seqs * (max_len * per_token + 1024))

    def propose_one(self, seq: Seq, budget: int) -> Draft:
        """Guess a chain; empty where nothing repeats."""
        index, tokens = self.indexes[seq.id], seq.tokens
        index.extend(tokens)
        start = index.find(tokens)
        if start is None:
            return EMPTY_DRAFT
        match = self._match(tokens, start)
        num_draft = min(budget, self.options.num_draft, math.ceil(match * self.options.factor))
        # A match that overlaps the end goes on with its own copy: the last period, again and again.
        period = len(tokens) - start
        copied = tuple(tokens[start + i % period] for i in range(num_draft))
        # The longer the match, the likelier it goes on; each token that comes true makes it longer.
        confidence = tuple((match + i) / (match + i + 1) for i in range(num_draft))
        return Draft(copied, tree.chain(num_draft), confidence=confidence)

    def _match(self, tokens: Sequence[int], start: int) -> int:
        """Count the tokens before `start` that match the last ones, as far as a full draft asks for."""
        longest = min(start, math.ceil(self.options.num_draft / self.options.factor))
        length = 1
        while length < longest and tokens[start - 1 - length] == tokens[-1 - length]:
            length += 1
        return length
