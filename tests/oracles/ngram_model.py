"""An n-gram model: tables of next tokens, and places where the same tokens stood, which cost little to ask.

Every context is a level of evidence: its last 1, 2, ... tokens in the tables, then the places in other outputs and in
this text where its last tokens stood. A level that saw the context N times, token t c(t) times,
corrects what the shorter contexts say (a Dirichlet prior of weight k; MacKay and Peto 1995):

    p(t) = (c(t) + k p'(t)) / (N + k)

A place where the last m tokens match counts as k m / 2 sights. The oracle of `csrc/drafters/ngram_model.cpp`, which
says the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from forerun.core.types import GuessTree
from forerun.drafters.base.ngram.token_table import PRIOR
from tests.oracles.growth import DraftRequest, TreeNoise, grow
from tests.oracles.suffix_index import SuffixIndex
from tests.oracles.token_table import FileTable, LiveTable, context_hashes

LIVE_WEIGHT = 16.0
"""Weight of a row learned in this process, in rows of the file."""
MAX_PLACES = 16
"""Places of an index that are counted, those with the longest matches."""

Level = tuple[float, dict[int, float]]
Places = list[tuple[int, int]]
"""Tokens that match, position of what follows."""


class GuessPlace(NamedTuple):
    """A place in a tree: the last tokens, and where they stood in each index."""

    tail: list[int]
    places: list[Places]


class NGramModel:
    """Predicts next tokens from tables and indexes."""

    def __init__(
        self, file: FileTable | None, live: LiveTable, indexes: Sequence[SuffixIndex]
    ) -> None:
        self.file, self.live, self.indexes = file, live, indexes

    def root(self, context: Sequence[int]) -> GuessPlace:
        """Find where the end of a text stood in each index."""
        places = [[*index.occurrences(context, MAX_PLACES)] for index in self.indexes]
        return GuessPlace([*context[-self.live.order :]], places)

    def next(self, here: GuessPlace) -> dict[int, float]:
        """Return the chances of the next tokens: every level corrects what the levels before it say."""
        in_places = map(_in_places, self.indexes, here.places)
        probabilities = _blend([*_in_tables(here.tail, self.file, self.live), *in_places])
        return {token: min(p, 1.0) for token, p in probabilities.items()}

    def follow(self, here: GuessPlace, token: int) -> GuessPlace:
        """Step to the place a token later."""
        places = [
            _follow(index, stood, token)
            for index, stood in zip(self.indexes, here.places, strict=True)
        ]
        return GuessPlace([*here.tail, token][-self.live.order :], places)


class TextNGramModel(NamedTuple):
    """The last tokens of each text, and the model to look them up in."""

    contexts: list[Sequence[int]]
    models: list[NGramModel]

    def context(self, i: int) -> Sequence[int]:
        """Return the last tokens of a text."""
        return self.contexts[i]

    def model(self, i: int) -> NGramModel:
        """Return the model of a text."""
        return self.models[i]


def grow_trees(
    texts: Sequence[SuffixIndex],
    shared: SuffixIndex,
    file: FileTable | None,
    live: LiveTable,
    num_nodes: Sequence[int],
    min_chance: float,
    noises: Sequence[TreeNoise | None] = (),
) -> list[GuessTree]:
    """Grow a tree for each text, document 0 of its index: what its last tokens say in all indexes and tables."""
    models = [NGramModel(file, live, (shared, text)) for text in texts]
    ngrams = TextNGramModel([text.last_tokens(0) for text in texts], models)
    return _grown(ngrams, num_nodes, min_chance, noises)


def grow_tree(
    context: Sequence[int],
    file: FileTable | None,
    live: LiveTable,
    indexes: Sequence[SuffixIndex],
    num_nodes: int,
    min_chance: float,
) -> GuessTree:
    """Grow a tree below some tokens, which may be those of no text."""
    ngrams = TextNGramModel([context], [NGramModel(file, live, indexes)])
    return _grown(ngrams, [num_nodes], min_chance, ())[0]


def _grown(ngrams, num_nodes, min_chance, noises) -> list[GuessTree]:
    tokens = [0] * len(num_nodes)
    return grow(DraftRequest(tokens, num_nodes, min_chance, ngrams, noises), [])


def _in_tables(tail: Sequence[int], file: FileTable | None, live: LiveTable) -> Iterator[Level]:
    for hash in context_hashes(tail, live.order):
        total, counts = 0.0, dict[int, float]()
        for table, weight in ((file, 1.0), (live, LIVE_WEIGHT)):
            if table is not None and (entry := table.find(hash)) is not None:
                total += weight * entry[0]
                for token, seen in entry[1]:
                    counts[token] = counts.get(token, 0.0) + weight * seen
        yield total, counts


def _in_places(index: SuffixIndex, places: Places) -> Level:
    total, counts = 0.0, dict[int, float]()
    for match, position in places:
        for token in index.tokens(position, 1):
            weight = PRIOR / 2 * match
            total += weight
            counts[token] = counts.get(token, 0.0) + weight
    return total, counts


def _follow(index: SuffixIndex, places: Places, token: int) -> Places:
    """Keep the places that go on with a token, a token later."""
    return [(m + 1, place + 1) for m, place in places if [*index.tokens(place, 1)] == [token]]


def _blend(levels: Sequence[Level]) -> dict[int, float]:
    probabilities: dict[int, float] = {}
    for total, counts in levels:
        if total:
            scale = PRIOR / (total + PRIOR)
            for token in probabilities:
                probabilities[token] *= scale
            for token, seen in counts.items():
                probabilities[token] = probabilities.get(token, 0.0) + seen / (total + PRIOR)
    return probabilities
