"""A model cut over processes, as rank 0 has it: a `Model` whose passes all ranks compute.

Only passes are shared. Tokens are looked up at rank 0, which holds the whole embedding, and the whole head for
drafters; the logits of a pass are computed by all, each rank those of its tokens. Rank 0 alone knows sequences,
prefixes and trees: the others hold blocks of keys and values, and it sends them which one lies where (`follower.py`).

R rows of a pass, M rows that need logits, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.types import TopK
from forerun.model.backends.native import MAX_ROWS, NativeDecoder
from forerun.model.cache.native import NativeCache
from forerun.model.config import ModelConfig
from forerun.parallel.cache import CacheBook, PartCache, packed
from forerun.parallel.head import SplitHead, num_floats, rows_at_once

if TYPE_CHECKING:
    from forerun.parallel.group import RankGroup
    from forerun.parallel.split import Part


class PartDecoder(NativeDecoder):
    """What one rank holds of a model: `config` is that of the whole model."""

    def __init__(
        self,
        config: ModelConfig,
        part: Part,
        group: RankGroup | None = None,
        num_threads: int | None = None,
    ) -> None:
        super().__init__(part.config(config), num_threads=num_threads)
        self.config, self.part = config, part
        if group is not None:
            self._native.set_ranks(group.ranks)

    def nbytes(self) -> int:
        """Return the bytes of the packed weights, and of what ranks exchange."""
        from forerun import _native

        numbers = num_floats(self.config.hidden_size, [self.part.tokens], MAX_ROWS)
        return super().nbytes() + _native.Ranks.nbytes(self.part.size, numbers)


class TensorParallel(PartDecoder):
    """Implements `model.model.Model`. `parts` are those of all ranks."""

    has_others = True

    def __init__(
        self,
        config: ModelConfig,
        parts: Sequence[Part],
        group: RankGroup,
        num_threads: int | None = None,
    ) -> None:
        super().__init__(config, parts[0], group, num_threads)
        self._group = group
        self._book = CacheBook()
        self._tokens = [part.tokens for part in parts]
        self._head: SplitHead | None = None

    def new_cache(self, *arguments: Any, **named: Any) -> PartCache:
        """Return a cache of this part's keys and values, with whose blocks the other ranks do what it does."""
        return self._book.new_cache(self.shard, *arguments, **named)

    def wait_for_others(self) -> None:
        """Return when all ranks have loaded their parts."""
        self._group.leader.send("ready")
        self._group.exchange(np.zeros(1, np.float32))

    def _announce(
        self, cache: NativeCache, segments: Sequence[Segment], inputs: Floats | None
    ) -> Floats:
        assert isinstance(cache, PartCache)
        if inputs is None:  # here: a wrong token is found before the other ranks begin
            inputs = self.embed(Batch(tuple(segments)).tokens())
        command = self._book.take_changes(), cache.number, packed(segments)
        self._group.leader.send("pass", *command)
        return inputs

    def head(self, hidden: Floats) -> Floats:
        """Return the logits (M, V) of hidden states (M, D)."""
        logits = np.empty((len(hidden), self.config.vocab_size), np.float32)
        self.topk(hidden, 1, logits=logits)
        return logits

    def topk(
        self,
        hidden: Floats,
        k: int,
        *,
        log_normaliser: bool = False,
        logits: Floats | None = None,
    ) -> TopK:
        """Return the k likeliest tokens of each row; see `model.model.Model`."""
        vocab_size = self.config.vocab_size
        if len(self.part.tokens) == vocab_size or not len(hidden):
            return super().topk(hidden, k, log_normaliser=log_normaliser, logits=logits)
        if not 1 <= k <= vocab_size:
            raise ValueError(f"k must be 1 to {vocab_size}, got {k}")
        if self._head is None:
            own = self._native.first_head_rows(len(self.part.tokens))
            self._head = SplitHead(self._group, own, self._tokens)
        rows = np.ascontiguousarray(hidden)
        asked = k, log_normaliser, logits is not None
        step = rows_at_once(
            self._group.num_floats, len(self.part.tokens), rows.shape[1], k, logits is not None
        )
        found = []
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            self._group.leader.send("head", len(part), *asked)
            out = None if logits is None else logits[first : first + step]
            found.append(self._head.topk(part, *asked, out))
        ids, values, norms = zip(*found, strict=True)
        norm = np.concatenate(norms) if log_normaliser else None
        return TopK(np.concatenate(ids), np.concatenate(values), norm)
