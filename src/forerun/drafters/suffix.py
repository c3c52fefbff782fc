"""Suffix decoding: guess what followed the same words before, in this request or an earlier one.

For every length p to which the last tokens match something seen, the occurrences vote: the tree of
their continuations is grown from its most frequent nodes, and its score, the expected number of
accepted tokens, says which p to use. Agents, templates and edits repeat themselves across
requests, so finished outputs are remembered, the oldest forgotten first.

Source: SuffixDecoding (arXiv 2411.04975). There D(node) is the product of count(child) /
count(parent) along the path; it telescopes to the share of the occurrences that reach the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forerun.core.errors import ConfigError, check_least
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafters.base.contract import Drafter, DrafterBytes, Method, Target
from forerun.drafters.base.ngram.texts import Continuation, Texts

if TYPE_CHECKING:
    from forerun._native import SuffixIndex

MAX_OCCURRENCES = 16
"""Occurrences that vote, those with the longest matches: bounds the time of a look-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How far to look back, how much to guess, how much to remember."""

    max_depth: int = 64
    """Longest run of last tokens that is matched."""
    min_depth: int = 1
    """Shortest run that is followed."""
    num_draft: int = 7
    """Nodes of a tree at most."""
    factor: float = 1.0
    """Nodes for each token that matches: a longer match is followed further."""
    offset: float = 0.0
    """Nodes granted on top of those, whatever the match."""
    min_token_prob: float = 0.1
    """Share of the occurrences that must reach a node."""
    shared_tokens: int = 100_000
    """Tokens of outputs remembered for other requests, oldest forgotten first; 0 shares none."""

    def __post_init__(self) -> None:
        for name, least in (
            ("max_depth", 1),
            ("min_depth", 1),
            ("num_draft", 1),
            ("offset", 0),
            ("shared_tokens", 0),
        ):
            check_least(name, getattr(self, name), least)
        if not self.factor > 0:
            raise ConfigError(f"factor must be above 0, got {self.factor}")
        if not 0 < self.min_token_prob <= 1:
            raise ConfigError(
                f"min_token_prob must be above 0 and at most 1, got {self.min_token_prob}"
            )


def build(options: Options, target: Target) -> Suffix:
    """Build a drafter that needs nothing of the target."""
    return Suffix(options)


def example(target: Target) -> Options:
    """Return options with so little memory that texts are soon dropped."""
    return Options(shared_tokens=512)


def smaller(options: Options) -> Options | None:
    """Keep a quarter of the shared texts, until they are few."""
    few = options.shared_tokens // 4
    return replace(options, shared_tokens=few) if few >= 1000 else None


METHOD = Method(
    unshared=lambda options: replace(options, shared_tokens=0),
    smaller=smaller,
    example=example,
    grids={
        "num_draft": (1, 2, 3, 5, 7, 11, 15, 23),
        "factor": (0.5, 1.0, 2.0, 4.0),
        "min_token_prob": (0.05, 0.1, 0.2, 0.35, 0.5),
        "max_depth": (8, 16, 64),
    },
)


class Suffix(Drafter):
    """Trees of continuations, from the request's own tokens and from the outputs of others."""

    def __init__(self, options: Options) -> None:
        self.options, self.max_nodes = options, options.num_draft
        self.texts = Texts(options.max_depth, options.shared_tokens)

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Index the prompt, and the answer from here on."""
        self.texts.begin(seq, len(outcome.emitted))

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence, its likeliest nodes first; empty where nothing repeats."""
        indexes = self.texts.indexes(seqs)
        return [self._best(*each) for each in zip(seqs, indexes, budgets, strict=True)]

    def _best(self, seq: Seq, own: SuffixIndex, budget: int) -> Draft:
        """Choose the better of the trees from the sequence itself and from the others."""
        options, context = self.options, self.texts.context(seq)
        best: Continuation = ((), (), (), 0.0)
        for index in (own, self.texts.shared):
            better = index.continuation(
                context,
                best[-1],
                MAX_OCCURRENCES,
                min(budget, options.num_draft),
                options.factor,
                options.offset,
                options.min_token_prob,
                options.min_depth,
            )
            best = better or best
        tokens, parents, confidence, _ = best
        return Draft(tokens, parents, confidence=confidence) if tokens else EMPTY_DRAFT

    def end(self, seq: Seq) -> None:
        """Drop the sequence's own index; its output stays shared."""
        self.texts.end(seq)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the shared index when full, and the indexes of full sequences."""
        return DrafterBytes(tables=self.texts.nbytes(num_seqs, max_len))
