"""What the engine and the drafters need of a model: rows in, hidden states out, and the head apart from the body.

R rows of the pass, M rows that need logits, D hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.cache.base import KVCache
from forerun.core.batch import Batch
from forerun.nn.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Hidden:
    """`last` (R, D): the state the head reads, after the final norm. `taps`: the asked layers' outputs, (R, D)."""

    last: Tensor
    taps: tuple[Tensor, ...] = ()


class Model(Protocol):
    """A decoder. The row law holds: a row's result does not depend on the other rows of the pass, bit for bit."""

    config: ModelConfig

    def forward(self, batch: Batch, cache: KVCache, taps: tuple[int, ...] = ()) -> Hidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (M, V), fp32, of hidden states (M, D)."""
        ...

    def new_cache(self, num_slots: int, max_len: int) -> KVCache:
        """A cache that fits this model."""
        ...

    def nbytes(self) -> int:
        """Bytes of the weights as held in memory."""
        ...
