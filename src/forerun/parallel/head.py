"""The head cut by tokens: every rank computes the logits of its own, and rank 0 merges what they found.

M rows that need logits, D width, V vocabulary, k tokens a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerun.core.types import TopK

if TYPE_CHECKING:
    from forerun import _native
    from forerun.parallel.group import RankGroup

Floats = NDArray[np.float32]


class SplitHead:
    """One rank's rows of the head, `own`, and which those of the others are, `tokens`, by rank."""

    def __init__(
        self, group: RankGroup, own: _native.Decoder | _native.Head, tokens: Sequence[range]
    ) -> None:
        self._group, self._own, self._tokens = group, own, tokens
        self._width = max(map(len, tokens))

    def topk(
        self, rows: Floats, k: int, with_norm: bool, with_logits: bool, out: Floats | None = None
    ) -> TopK:
        """Compute the head of rows (M, D), rank 0's: see `model.model.Model.topk`. All ranks call it at once.

        The other ranks' `rows` count only by their shape. Into `out` (M, V) go all logits, if asked for.
        """
        rows = self._group.exchange(rows)[0].reshape(rows.shape)
        own = self._numbers(rows, k, with_norm, with_logits)
        every = self._group.exchange(own).reshape(len(self._tokens), *own.shape)
        k_each = min(k, self._width)
        firsts = np.array([tokens.start for tokens in self._tokens])
        ids = every[:, :, :k_each].view(np.int32) + firsts[:, None, None]
        values = every[:, :, k_each : 2 * k_each]
        # Ranks ascend in tokens, as each one's list does among equals: so the lowest of equal ones comes first.
        ids, values = (part.swapaxes(0, 1).reshape(len(rows), -1) for part in (ids, values))
        order = np.lexsort((-values, ~np.isnan(values)), axis=-1)[:, :k]
        ids, values = (np.take_along_axis(part, order, 1) for part in (ids, values))
        norm = None
        if with_norm:
            norm = np.array([_log_sum(row) for row in every[:, :, 2 * k_each].T], np.float32)
        if out is not None:
            for tokens, part in zip(
                self._tokens, every[:, :, own.shape[1] - self._width :], strict=True
            ):
                out[:, tokens.start : tokens.stop] = part[:, : len(tokens)]
        return TopK(ids.astype(np.int64), np.ascontiguousarray(values), norm)

    def _numbers(self, rows: Floats, k: int, with_norm: bool, with_logits: bool) -> Floats:
        """Compute this rank's tokens: k of them (as the bits of int32) and their logits, the normaliser, all logits.

        Returns (M, n); a rank with fewer tokens than the first fills its places up with logits of minus infinity.
        """
        count, num_rows = len(self._tokens[self._group.rank]), len(rows)
        here, k_each = min(k, count), min(k, self._width)
        ids, values = np.empty((num_rows, here), np.int64), np.empty((num_rows, here), np.float32)
        norm = np.empty(num_rows, np.float32) if with_norm else None
        logits = np.empty((num_rows, count), np.float32) if with_logits else None
        self._own.topk(rows, ids, values, norm, logits)
        size = 2 * k_each + with_norm + with_logits * self._width
        every = np.full((num_rows, size), -np.inf, np.float32)
        every[:, :here] = ids.astype(np.int32).view(np.float32)
        every[:, k_each : k_each + here] = values
        if norm is not None:
            every[:, 2 * k_each] = norm
        if logits is not None:
            every[:, size - self._width :][:, :count] = logits
        return every


def num_floats(hidden_size: int, tokens: Sequence[range], num_rows: int) -> int:
    """Return how many numbers ranks exchange at once, at most: of so many rows, or of all logits of one."""
    return max(num_rows * hidden_size, 3 * max(map(len, tokens)) + 1)


def rows_at_once(num_floats: int, width: int, hidden_size: int, k: int, with_logits: bool) -> int:
    """Return how many rows' results can be exchanged at once, of parts of up to `width` tokens."""
    each = 2 * min(k, width) + 1 + with_logits * width
    return max(1, num_floats // max(each, hidden_size))


def _log_sum(norms: Floats) -> float:
    """Return the logarithm of the sum of e^norm over the ranks, in their order."""
    largest = float(norms.max())
    if not math.isfinite(largest):
        return largest
    return largest + math.log(sum(math.exp(float(norm) - largest) for norm in norms))
