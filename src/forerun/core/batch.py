"""One pass of a model, packed ragged: rows of several sequences, no padding.

A segment is one sequence's part: `base` rows of its cache are committed, and its rows form a tree
above them (a prompt chunk is a chain). Row r is written to the cache at `base + r`, where it stays
scratch until `cache.keep` commits a path. It sees the committed rows and its ancestors. A segment
may be computed piece by piece: rows before `first` are in the cache already, as when a draft model
grows its tree level by level.

R rows of the pass, n rows of one segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, count
from operator import eq

import numpy as np
from numpy.typing import NDArray

from forerun.core import tree


@dataclass(slots=True)
class Segment:
    """Rows `first` to `stop` of one sequence's tree above `base` committed cache rows of cache slot `slot`.

    `parents` (one a token, -1 = the committed prefix) is None for a chain. The first `certain` rows are a chain
    that will be committed whatever the model says of them, as a prompt's are: a recurrent state may run ahead to
    them before they are (`KVCache.advance`). It is not frozen,
    since a pass makes one for each sequence, and frozen ones take longer to make.
    """

    slot: int
    base: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    first: int = 0
    stop: int = -1
    certain: int = 0

    def __post_init__(self) -> None:
        if self.stop < 0:
            self.stop = len(self.tokens)
        if self.parents is not None and all(map(eq, self.parents, count(-1))):
            self.parents = None

    @property
    def num_rows(self) -> int:
        """Rows that this pass computes for the segment: pending tokens and draft."""
        return self.stop - self.first

    def positions(self) -> NDArray[np.int64]:
        """Return the absolute positions of the computed rows, shape (num_rows,)."""
        if self.parents is None:
            return np.arange(self.base + self.first, self.base + self.stop)
        depths = np.array(tree.depths(self.parents[: self.stop]), dtype=np.int64)
        return self.base + depths[self.first :]

    def visible(self) -> NDArray[np.bool_] | None:
        """Return a mask (num_rows, stop): the rows above `base` that each row sees, itself included; None for a chain.

        Among the visible rows, ascending index is ascending position: ancestors come before descendants.
        """
        if self.parents is None:
            return None
        return tree.ancestors(self.parents[: self.stop])[self.first :]


@dataclass(frozen=True, slots=True)
class Batch:
    """The segments of one pass, in order. Row order is segment order."""

    segments: tuple[Segment, ...]

    @property
    def num_rows(self) -> int:
        """R, the rows this pass computes."""
        return sum([segment.stop - segment.first for segment in self.segments])

    def tokens(self) -> NDArray[np.int64]:
        """Return the token ids (R,) of all rows, segment after segment."""
        parts = [s.tokens[s.first : s.stop] for s in self.segments]
        return np.array([token for part in parts for token in part], dtype=np.int64)

    def positions(self) -> NDArray[np.int64]:
        """Return the absolute positions (R,) of all rows, as the rotary embedding needs them."""
        return np.concatenate([segment.positions() for segment in self.segments])

    def spans(self) -> list[range]:
        """Return the slice of each segment among the rows."""
        stops = accumulate(s.num_rows for s in self.segments)
        return [
            range(stop - s.num_rows, stop) for s, stop in zip(self.segments, stops, strict=True)
        ]

    def split(self, height: int, chunk: int = 0) -> Iterator[Batch]:
        """Yield batches of at most `height` rows that together compute this one, in row order.

        With a `chunk`, certain rows on both sides of a multiple of that many positions are in two of them.
        """
        tile: list[Segment] = []
        rows_left = height
        for segment in self.segments:
            first = segment.first
            while first < segment.stop:
                border = (
                    (segment.base + first) // chunk * chunk + chunk - segment.base if chunk else 0
                )
                stop = min(segment.stop, first + rows_left)
                is_cut = first < border <= stop and border < min(segment.certain, segment.stop)
                stop = border if is_cut else stop
                tile.append(replace(segment, first=first, stop=stop))
                rows_left -= stop - first
                first = stop
                if rows_left == 0 or is_cut:
                    yield Batch(tuple(tile))
                    tile, rows_left = [], height
        if tile:
            yield Batch(tuple(tile))
