"""The texts that are searched for repeats: each request's own, and recent answers to all requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from forerun.core.types import Seq
from forerun.model.kernels import native

if TYPE_CHECKING:
    from forerun._native import SuffixIndex

Continuation = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], float]
"""A tree's tokens, parents and confidence, and its score: how many of its tokens should be accepted."""
_TOKEN_NBYTES = 14
"""4 bytes for the token, 8 for its position, and an eighth for arrays to grow into."""


@dataclass(slots=True)
class _History:
    """One running sequence: its own index, and how much of it each index has read."""

    index: SuffixIndex
    document: int
    num_shared: int
    num_indexed: int = 0


class Texts:
    """Indexes that follow the running sequences; `shared` outlives them, the oldest outputs are forgotten first.

    Raises LoadError where the native library is not there.
    """

    def __init__(self, max_depth: int, shared_tokens: int) -> None:
        """Set the longest match that is looked for, and how many tokens of outputs are shared with other requests."""
        self.max_depth, self.shared_tokens = max_depth, shared_tokens
        native.require()
        from forerun import _native

        self._new_index = _native.SuffixIndex
        self.shared = self._new_index(max_depth, shared_tokens)
        self._histories: dict[int, _History] = {}
        self._documents = count()

    def begin(self, seq: Seq, num_emitted: int) -> None:
        """Follow a sequence; its output before a preemption, all but the last `num_emitted`, is shared already."""
        num_shared = len(seq.tokens) - num_emitted
        index = self._new_index(self.max_depth)
        self._histories[seq.id] = _History(index, next(self._documents), num_shared)

    def indexes(self, seqs: Sequence[Seq]) -> list[SuffixIndex]:
        """Return the index of each sequence's text, up to its last token; the shared one reads their outputs, too."""
        found = []
        for seq in seqs:
            history, tokens = self._histories[seq.id], seq.tokens
            history.index.extend(0, tokens[history.num_indexed :])
            if self.shared_tokens:
                self.shared.extend(history.document, tokens[history.num_shared :])
            history.num_indexed = history.num_shared = len(tokens)
            found.append(history.index)
        return found

    def context(self, seq: Seq) -> list[int]:
        """Return the last tokens, as many as are matched."""
        return seq.tokens[-self.max_depth :]

    def end(self, seq: Seq) -> None:
        """Drop the sequence's own index; its output stays shared."""
        history = self._histories.pop(seq.id, None)
        if history is not None and self.shared_tokens:
            self.shared.extend(history.document, seq.tokens[history.num_shared :])

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """Count the shared index when full, and the indexes of full sequences."""
        return index_nbytes(self.shared_tokens) + num_seqs * (index_nbytes(max_len) + 512)


def index_nbytes(num_tokens: int) -> int:
    """Count the bytes an index holds at most: of that capacity, or with one document so long."""
    return num_tokens * _TOKEN_NBYTES + 1024
