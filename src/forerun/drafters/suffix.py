"""Suffix decoding: guess what followed the same words before, in this request or an earlier one.

For every length p to which the last tokens match something seen, the occurrences vote: the tree of
their continuations is grown from its most frequent nodes, and its score, the expected number of
accepted tokens, says which p to trust. Agents, templates and edits repeat themselves across
requests, so finished outputs are remembered, the oldest forgotten first. Everything is counted,
nothing is drawn: drafts are point masses.

`prompt_lookup` follows one occurrence and forgets with the request; this one weighs many.

Source: SuffixDecoding (arXiv 2411.04975). There D(node) is the product of count(child) /
count(parent) along the path; it telescopes to the share of the occurrences that reach the node.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from forerun.core import tree
from forerun.core.errors import ConfigError
from forerun.core.types import EMPTY_DRAFT, NO_FEATURES, Draft, Outcome, Seq
from forerun.drafters._contexts import ContextIndex, index_nbytes
from forerun.drafters._tuning import climb
from forerun.drafters.base import Target

MAX_OCCURRENCES = 16
"""Occurrences that vote, those with the longest matches: bounds the time of a look-up."""
GRIDS = {
    "num_draft": (1, 2, 3, 5, 7, 11, 15, 23),
    "factor": (0.5, 1.0, 2.0, 4.0),
    "min_token_prob": (0.05, 0.1, 0.2, 0.35, 0.5),
    "max_depth": (8, 16, 64),
}
"""What `tune` tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How far to look back, how much to guess, how much to remember."""

    max_depth: int = 64
    """Longest run of last tokens that is matched."""
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
            ("num_draft", 1),
            ("offset", 0),
            ("shared_tokens", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.factor > 0:
            raise ConfigError(f"factor must be above 0, got {self.factor}")
        if not 0 < self.min_token_prob <= 1:
            raise ConfigError(
                f"min_token_prob must be above 0 and at most 1, got {self.min_token_prob}"
            )


def build(options: Options, target: Target) -> Suffix:
    """A drafter that needs nothing of the target."""
    return Suffix(options)


def tune(target: Target, options: Options, score: Callable[[Options], float]) -> Options:
    """How much to guess, and of what, for this model's way of repeating itself and this machine's price of a row."""
    return climb(options, GRIDS, score)


@dataclass(frozen=True, slots=True)
class Guess:
    """A draft and the number of its tokens that should be accepted if the past repeats itself."""

    draft: Draft = EMPTY_DRAFT
    score: float = 0.0


@dataclass(slots=True)
class History:
    """One running sequence: its own index, and how much of it has been read into which."""

    own: ContextIndex
    document: int
    num_shared: int
    num_own: int = 0


class Suffix:
    """Trees of continuations, from the request's own tokens and from the outputs of others."""

    features = NO_FEATURES

    def __init__(self, options: Options) -> None:
        self.options = options
        self.shared = ContextIndex(options.max_depth, options.shared_tokens)
        self.histories: dict[int, History] = {}
        self._documents = count()

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Open a sequence; what it said before a preemption is shared already."""
        own = ContextIndex(self.options.max_depth)
        num_shared = len(seq.tokens) - len(outcome.emitted)
        self.histories[seq.id] = History(own, next(self._documents), num_shared)

    def propose(self, seqs: Sequence[Seq], budget: int) -> list[Draft]:
        """One tree a sequence, its likeliest nodes first; empty where nothing repeats."""
        for seq in seqs:
            self._share(seq)
        return [self._propose_one(seq, min(budget, self.options.num_draft)) for seq in seqs]

    def observe(self, seqs: Sequence[Seq], outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn but the tokens, which `propose` and `end` read."""

    def end(self, seq: Seq) -> None:
        """Drop the sequence's own index; its output stays shared."""
        if seq.id in self.histories:
            self._share(seq)
            del self.histories[seq.id]

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """The shared index when full, and the indexes of full sequences."""
        return index_nbytes(self.options.shared_tokens) + num_seqs * (index_nbytes(max_len) + 512)

    def _share(self, seq: Seq) -> None:
        history = self.histories[seq.id]
        if self.options.shared_tokens:
            self.shared.extend(history.document, seq.tokens[history.num_shared :])
        history.num_shared = len(seq.tokens)

    def _propose_one(self, seq: Seq, num_nodes: int) -> Draft:
        history = self.histories[seq.id]
        history.own.extend(0, seq.tokens[history.num_own :])
        history.num_own = len(seq.tokens)
        best = Guess()
        for index in (history.own, self.shared):
            for guess in self._guesses(index, seq.tokens, num_nodes, best.score):
                best = max(best, guess, key=lambda guess: guess.score)
        return best.draft

    def _guesses(
        self, index: ContextIndex, tokens: Sequence[int], num_nodes: int, score: float
    ) -> Iterator[Guess]:
        """A guess for each set of occurrences, longest match first, while it can beat `score`."""
        found = list(index.occurrences(tokens, MAX_OCCURRENCES))
        for i, (length, _) in enumerate(found, 1):
            if i < len(found) and found[i][0] == length:
                continue
            budget = min(num_nodes, int(self.options.factor * length + self.options.offset))
            # A node scores at most 1, and shorter matches are granted fewer nodes.
            if budget <= score:
                return
            # Newest first: among equals, the most recent continuation is preferred.
            positions = sorted((position for _, position in found[:i]), reverse=True)
            guess = self._grow(index, positions, length, budget)
            score = max(score, guess.score)
            yield guess

    def _grow(
        self, index: ContextIndex, occurrences: list[int], match: int, num_nodes: int
    ) -> Guess:
        """The `num_nodes` most frequent nodes of the tree of continuations after `match` tokens."""
        if len(occurrences) == 1:
            return _follow(index.tokens(occurrences[0], num_nodes), match)
        least = self.options.min_token_prob * len(occurrences)
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        heap: list[tuple[int, int, int, int, int, float, list[int]]] = []
        parent, depth, here, serial, total = -1, 0, occurrences, count(), 0
        while len(tokens) < num_nodes:
            for token, followers in index.followers(here).items():
                if len(followers) >= least:
                    sure = _confidence(len(followers), len(here), match + depth)
                    node = (next(serial), token, parent, depth, sure, followers)
                    heapq.heappush(heap, (-len(followers), *node))
            if not heap:
                break
            negative, _, token, above, depth, sure, here = heapq.heappop(heap)
            parent = len(tokens)
            tokens.append(token)
            parents.append(above)
            confidence.append(sure)
            depth += 1
            total -= negative
        draft = Draft(tuple(tokens), tuple(parents), confidence=tuple(confidence))
        return Guess(draft, total / len(occurrences))


def _follow(tokens: Sequence[int], match: int) -> Guess:
    """What a tree of one occurrence grows to: its continuation, a node a token."""
    sure = tuple(_confidence(1, 1, match + depth) for depth in range(len(tokens)))
    draft = Draft(tuple(tokens), tree.chain(len(tokens)), confidence=sure)
    return Guess(draft, float(len(tokens)))


def _confidence(num_followers: int, num_occurrences: int, match: int) -> float:
    """The share of the occurrences that go on so, less where few of them or short ones say so."""
    evidence = match + num_occurrences - 1
    return num_followers / num_occurrences * evidence / (evidence + 1)
