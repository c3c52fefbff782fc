"""A suffix index: where did these last tokens stand before, and what followed there?

Positions of all documents are kept in one sorted array, ordered by
the tokens before them read backwards, so positions whose contexts share their last p tokens lie
side by side. Looking up is one binary search and a walk outwards from where the context would
stand, which meets its occurrences from the longest match to the shortest. A suffix tree answers
the same questions; this needs 12 bytes a token instead of several hundred, and forgets a document
by leaving its positions out.

The oracle of `csrc/drafters/suffix_index.cpp`, which answers the same to the last bit in a tenth of the time.

A position is `document << 32 | offset`; position and document mean nothing outside this module.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from forerun.core import tree

OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1
DOCUMENT_TOKENS = 24
"""Overhead of a document (an array object and its entry in a dict), in tokens."""
Continuation = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], float]
"""A tree's tokens, parents and confidence, and its score: how many of its tokens should be accepted."""


class SuffixIndex:
    """Documents that grow token by token, and every place in them sorted by what stands before it.

    Contexts are compared over their last `max_depth` tokens. With a `capacity`, at most so many
    tokens are kept: the oldest documents go first.
    """

    def __init__(self, max_depth: int, capacity: int | None = None) -> None:
        self.max_depth = max_depth
        self.capacity = capacity
        self.num_tokens = 0
        self._documents: dict[int, array[int]] = {}
        self._order = array("q")

    def extend(self, document: int, tokens: Sequence[int]) -> None:
        """Append tokens to a document, which begins with them if it is not there (any more)."""
        if not tokens:
            return
        text = self._documents.setdefault(document, array("i"))
        first = len(text)
        text.extend(tokens)
        self.num_tokens += len(tokens)
        # The first token of a document has no context, so nothing could ever find it.
        base = document << OFFSET_BITS
        new = range(base + max(first, 1), base + len(text))
        if len(new) * 8 > len(self._order):
            self._order = array("q", sorted([*reversed(new), *self._order], key=self._context))
        else:
            for position in new:
                self._order.insert(self._place(self._context(position)), position)
        if self.capacity is not None and self._size() > self.capacity:
            self._evict(self.capacity - self.capacity // 8)

    def occurrences(self, context: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
        """Return up to `most` (match length, position of the token that followed), longest match first.

        Only matches of at least one token; none is left out in favour of a shorter one.
        """
        key = array("i", context[: -self.max_depth - 1 : -1])
        place = self._place(key)
        before, after = place - 1, place
        match_before, match_after = self._match(key, before), self._match(key, after)
        for _ in range(most):
            if not match_before and not match_after:
                return
            if match_before > match_after:
                yield match_before, self._order[before]
                before -= 1
                match_before = self._match(key, before)
            else:
                yield match_after, self._order[after]
                after += 1
                match_after = self._match(key, after)

    def continuation(
        self,
        context: Sequence[int],
        score: float,
        most: int,
        num_nodes: int,
        factor: float,
        offset: float,
        min_token_prob: float,
        min_depth: int = 1,
    ) -> Continuation | None:
        """Return the best tree behind a context, of all sets of occurrences; None if none beats `score`.

        `most` occurrences vote; a match of p tokens is granted `factor * p + offset` nodes, at most
        `num_nodes`, and a node must be reached by a share of `min_token_prob` of its occurrences. Matches of
        fewer than `min_depth` tokens are not followed.
        """
        best = None
        occurrences = list(self.occurrences(context, most))
        for i, (length, _) in enumerate(occurrences, 1):
            if i < len(occurrences) and occurrences[i][0] == length:
                continue
            budget = min(num_nodes, int(factor * length + offset))
            # A node scores at most 1, and shorter matches are granted fewer nodes.
            if budget <= score or length < min_depth:
                break
            # Newest first: among equals, the most recent continuation is preferred.
            positions = sorted((position for _, position in occurrences[:i]), reverse=True)
            candidate = self._tree(positions, length, budget, min_token_prob)
            if candidate[-1] > score:
                best, score = candidate, candidate[-1]
        return best

    def last_tokens(self, document: int) -> Sequence[int]:
        """Return the last tokens of a document, at most `max_depth`; none of an unknown one."""
        return self._documents.get(document, array("i"))[-self.max_depth :]

    def tokens(self, position: int, most: int) -> Sequence[int]:
        """Return up to `most` tokens from a position on; fewer at the end of its document."""
        offset = position & OFFSET_MASK
        return self._documents[position >> OFFSET_BITS][offset : offset + most]

    def followers(self, positions: Iterable[int]) -> dict[int, list[int]]:
        """Return the positions behind these, by the token that stands at these."""
        by_token: dict[int, list[int]] = {}
        for position in positions:
            text, offset = self._documents[position >> OFFSET_BITS], position & OFFSET_MASK
            if offset < len(text):
                by_token.setdefault(text[offset], []).append(position + 1)
        return by_token

    def _tree(
        self, occurrences: list[int], match: int, num_nodes: int, min_token_prob: float
    ) -> Continuation:
        """Return the `num_nodes` most frequent nodes of the tree of continuations after `match` tokens."""
        if len(occurrences) == 1:
            return _follow(self.tokens(occurrences[0], num_nodes), match)
        least = min_token_prob * len(occurrences)
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        heap: list[tuple[int, int, int, int, int, float, list[int]]] = []
        parent, depth, here, serial, total = -1, 0, occurrences, count(), 0
        while len(tokens) < num_nodes:
            for token, followers in self.followers(here).items():
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
        return tuple(tokens), tuple(parents), tuple(confidence), total / len(occurrences)

    def _context(self, position: int) -> array[int]:
        """Return the tokens before a position, the nearest first."""
        text = self._documents[position >> OFFSET_BITS]
        offset = position & OFFSET_MASK
        stop = offset - 1 - self.max_depth
        return text[offset - 1 : stop if stop >= 0 else None : -1]

    def _place(self, key: array[int]) -> int:
        return bisect_left(self._order, key, key=self._context)

    def _match(self, key: array[int], index: int) -> int:
        """Count the tokens of `key` that the context at `index` of the order shares; 0 outside."""
        if not 0 <= index < len(self._order):
            return 0
        context = self._context(self._order[index])
        if context == key:  # long repeats are compared at C speed
            return len(key)
        for length, (wanted, actual) in enumerate(zip(key, context, strict=False)):
            if wanted != actual:
                return length
        return min(len(key), len(context))

    def _size(self) -> int:
        return self.num_tokens + DOCUMENT_TOKENS * len(self._documents)

    def _evict(self, size: int) -> None:
        """Drop the oldest documents until at most `size` is left.

        That is well below the capacity: this costs a pass over everything, and should be rare.
        """
        dropped = set()
        while self._documents and self._size() > size:
            document = next(iter(self._documents))
            self.num_tokens -= len(self._documents.pop(document))
            dropped.add(document)
        remaining = (p for p in self._order if p >> OFFSET_BITS not in dropped)
        self._order = array("q", remaining)


def _follow(tokens: Sequence[int], match: int) -> Continuation:
    """Grow the tree of a single occurrence: its continuation, a node a token."""
    sure = tuple(_confidence(1, 1, match + depth) for depth in range(len(tokens)))
    return tuple(tokens), tree.chain(len(tokens)), sure, float(len(tokens))


def _confidence(num_followers: int, num_occurrences: int, match: int) -> float:
    """Return the share of the occurrences that go on so, less where few of them or short ones say so."""
    evidence = match + num_occurrences - 1
    return num_followers / num_occurrences * evidence / (evidence + 1)
