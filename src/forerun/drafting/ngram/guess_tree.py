"""One tree of guesses from all that costs nothing to ask: tables of next tokens, and places where the same words stood.

Every context is a level of evidence: its last 1, 2, ... tokens in the tables, then the places in other outputs and in
this text where its last tokens stood. A level that saw the context N times, token t c(t) times,
corrects what the shorter contexts say (a Dirichlet prior of weight k; MacKay and Peto 1995):

    p(t) = (c(t) + k p'(t)) / (N + k)

A place where the last m tokens match counts as k m / 2 sights. The tree is grown best first: the node taken next is the
one that is likeliest to be reached, the product of the chances down to it.

The native extension has a twin (csrc/drafters/guess_tree.cpp), which grows the same tree to the last bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from forerun.drafting.ngram.suffix_index import SuffixIndex
from forerun.drafting.ngram.token_table import (
    AnyFileTable,
    AnyLiveTable,
    FileTable,
    LiveTable,
    context_hashes,
)

if TYPE_CHECKING:
    from forerun import _native
    from forerun.drafting.ngram.suffix_index import Index

PRIOR = 6.0
"""k: sights that the shorter contexts together weigh as much as."""
LIVE_WEIGHT = 16.0
"""What a row learned in this process counts for, in rows of the file."""
MAX_PLACES = 16
"""Places of an index that are asked, those with the longest matches."""

GuessTree = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Tokens, parents, and the chance of each node once its parent is right; best first."""
Level = tuple[float, dict[int, float]]
Places = list[tuple[int, int]]
"""Tokens that match, position of what follows."""


def grow(
    context: Sequence[int],
    file: AnyFileTable | None,
    live: AnyLiveTable,
    indexes: Sequence[Index],
    num_nodes: int,
    min_chance: float,
) -> GuessTree:
    """At most `num_nodes` nodes that are reached with a chance of at least `min_chance`.

    Tables and indexes are all native or all their oracles, as `new_live_table` and its like make them.
    """
    grow_tree: Callable[..., GuessTree] = grow_in_python
    if not isinstance(live, LiveTable):
        from forerun import _native

        grow_tree = _native.grow_tree
    return grow_tree(context, file, live, indexes, num_nodes, min_chance)


def grower(live: AnyLiveTable) -> Callable[..., list[GuessTree]]:
    """What grows a tree for each text of a step: `grow_trees_in_python`, or its twin where the table is native."""
    if isinstance(live, LiveTable):
        return grow_trees_in_python
    from forerun import _native

    return _native.grow_trees


def grow_trees_in_python(
    texts: Sequence[SuffixIndex],
    shared: SuffixIndex,
    file: FileTable | None,
    live: LiveTable,
    num_nodes: Sequence[int],
    min_chance: float,
) -> list[GuessTree]:
    """A tree for each text, document 0 of its index: what its last tokens say in all indexes and tables."""
    return [
        grow_in_python(text.last_tokens(0), file, live, (shared, text), most, min_chance)
        for text, most in zip(texts, num_nodes, strict=True)
    ]


def grow_in_python(
    context: Sequence[int],
    file: FileTable | None,
    live: LiveTable,
    indexes: Sequence[SuffixIndex],
    num_nodes: int,
    min_chance: float,
) -> GuessTree:
    """The oracle of the native one."""
    ngrams = NGramModel(file, live, indexes)
    nodes: list[tuple[int, int, float]] = []
    heap: list[tuple[float, int, int, int, float, GuessPlace]] = []
    serial, chance, parent, here = count(), 1.0, -1, ngrams.root(context)
    while len(nodes) < num_nodes:
        for token, p in ngrams.next(here).items():
            if chance * p >= min_chance:
                heapq.heappush(heap, (-chance * p, next(serial), parent, token, p, here))
        if not heap:
            break
        negative, _, above, token, p, here = heapq.heappop(heap)
        chance, parent, here = -negative, len(nodes), ngrams.follow(here, token)
        nodes.append((token, above, p))
    tokens, parents, chances = zip(*nodes, strict=True) if nodes else ((), (), ())
    return tokens, parents, chances


class GuessPlace(NamedTuple):
    """A place in a tree: the last tokens, and where they stood in each index."""

    tail: list[int]
    places: list[Places]


class NGramModel:
    """What tables and indexes say may come next."""

    def __init__(
        self, file: FileTable | None, live: LiveTable, indexes: Sequence[SuffixIndex]
    ) -> None:
        self.file, self.live, self.indexes = file, live, indexes

    def root(self, context: Sequence[int]) -> GuessPlace:
        """Where a text ends."""
        places = [[*index.occurrences(context, MAX_PLACES)] for index in self.indexes]
        return GuessPlace([*context[-self.live.order :]], places)

    def next(self, here: GuessPlace) -> dict[int, float]:
        """Chances of the next tokens: every level corrects what the levels before it say."""
        in_places = map(_in_places, self.indexes, here.places)
        chances = _blend([*_in_tables(here.tail, self.file, self.live), *in_places])
        return {token: min(p, 1.0) for token, p in chances.items()}

    def follow(self, here: GuessPlace, token: int) -> GuessPlace:
        """The place a token later."""
        places = [
            _follow(index, found, token)
            for index, found in zip(self.indexes, here.places, strict=True)
        ]
        return GuessPlace([*here.tail, token][-self.live.order :], places)


TextNGramModel = Sequence[tuple[Sequence[int], NGramModel]]
"""The last tokens of each text, and what is known of them."""
AnyNGramModel: TypeAlias = "TextNGramModel | _native.TextNGramModel"


def text_ngrams(texts: Sequence[Any], shared: Any, file: Any, live: AnyLiveTable) -> AnyNGramModel:
    """What tables and indexes know of texts, each document 0 of its index; all are native, or all their oracles."""
    if isinstance(live, LiveTable):
        return [(text.last_tokens(0), NGramModel(file, live, (shared, text))) for text in texts]
    from forerun import _native

    return _native.TextNGramModel(texts, shared, file, live)


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
    """The places that go on with a token, a token later."""
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
