"""An n-gram model: tables of next tokens, and places where the same tokens stood, which cost little to ask.

Every context is a level of evidence: its last 1, 2, ... tokens in the tables, then the places in other outputs and in
this text where its last tokens stood. A level that saw the context N times, token t c(t) times,
corrects what the shorter contexts say (a Dirichlet prior of weight k; MacKay and Peto 1995):

    p(t) = (c(t) + k p'(t)) / (N + k)

A place where the last m tokens match counts as k m / 2 sights. `csrc/drafters/guess_tree.cpp` says the same to the last
bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from forerun.drafting.ngram.suffix_index import SuffixIndex
from forerun.drafting.ngram.token_table import (
    AnyLiveTable,
    FileTable,
    LiveTable,
    context_hashes,
)

if TYPE_CHECKING:
    from forerun import _native

PRIOR = 6.0
"""Weight of the shorter contexts, in occurrences (k)."""
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
        chances = _blend([*_in_tables(here.tail, self.file, self.live), *in_places])
        return {token: min(p, 1.0) for token, p in chances.items()}

    def follow(self, here: GuessPlace, token: int) -> GuessPlace:
        """Step to the place a token later."""
        places = [
            _follow(index, found, token)
            for index, found in zip(self.indexes, here.places, strict=True)
        ]
        return GuessPlace([*here.tail, token][-self.live.order :], places)


TextNGramModel = Sequence[tuple[Sequence[int], NGramModel]]
"""The last tokens of each text, and the models to look them up in."""
AnyNGramModel: TypeAlias = "TextNGramModel | _native.TextNGramModel"


def python_ngrams(
    texts: Sequence[SuffixIndex], shared: SuffixIndex, file: FileTable | None, live: LiveTable
) -> TextNGramModel:
    """Make the n-gram models of texts in Python, each text document 0 of its index."""
    return [(text.last_tokens(0), NGramModel(file, live, (shared, text))) for text in texts]


def text_ngrams(texts: Sequence[Any], shared: Any, file: Any, live: AnyLiveTable) -> AnyNGramModel:
    """Make the n-gram models of texts; tables and indexes are all native, or all their references in Python."""
    if isinstance(live, LiveTable):
        return python_ngrams(texts, shared, file, live)
    from forerun import _native

    return _native.TextNGramModel(texts, shared, file, live)


def in_python(ngrams: AnyNGramModel | None) -> TextNGramModel:
    """Return the models of texts one by one, as trees that grow in Python ask them; none of None."""
    if ngrams is None or isinstance(ngrams, Sequence):
        return ngrams or ()
    models = [(ngrams.context(i), ngrams.model(i)) for i in range(len(ngrams))]
    return cast("TextNGramModel", models)


def _in_tables(tail: Sequence[int], file: FileTable | None, live: LiveTable) -> Iterator[Level]:
    for hash in context_hashes(tail, live.order):
        total, counts = 0.0, dict[int, float]()
        for table, weight in ((file, 1.0), (live, LIVE_WEIGHT)):
            if table is not None and (found := table.find(hash)) is not None:
                total += weight * found[0]
                for token, seen in found[1]:
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
    chances: dict[int, float] = {}
    for total, counts in levels:
        if total:
            scale = PRIOR / (total + PRIOR)
            for token in chances:
                chances[token] *= scale
            for token, seen in counts.items():
                chances[token] = chances.get(token, 0.0) + seen / (total + PRIOR)
    return chances
