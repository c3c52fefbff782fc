"""What the engine and the drafters need of a model: rows in, hidden states out, and the head apart from the body.

R rows of the pass, M rows that need logits, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from forerun.core.batch import Batch
from forerun.core.config import Precision
from forerun.core.errors import CapacityError
from forerun.core.types import TopK
from forerun.model.cache.base import KVCache
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Hidden:
    """`last` (R, D): the state the head reads, after the final norm. `taps`: the asked layers' outputs, (R, D)."""

    last: Tensor
    taps: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Which sublayers of a pass are run; the others hand on what they get.

    `sublayers`, ascending: 2 i is the attention of layer i, 2 i + 1 its MLP. A skipped attention
    leaves no keys and values of the pass's rows in its layer of the cache: layers that share them skip theirs, too.
    """

    sublayers: tuple[int, ...]

    @classmethod
    def of(
        cls,
        num_layers: int,
        *,
        exit: int | None = None,
        skip_attn: Iterable[int] = (),
        skip_mlp: Iterable[int] = (),
    ) -> LayerPlan:
        """Return the first `exit` layers, None for all, without the attention and the MLP of the named ones."""
        skipped = {2 * i for i in skip_attn} | {2 * i + 1 for i in skip_mlp}
        stop = 2 * (num_layers if exit is None else exit)
        return cls(tuple(s for s in range(stop) if s not in skipped))


@dataclass(frozen=True, slots=True)
class HeadPart:
    """The head of some tokens by itself, to be asked often."""

    logits: Callable[[Tensor], Tensor]
    """Logits (M, n) of its tokens, fp32, of hidden states (M, D): those of `Model.head_rows`, bit for bit."""
    nbytes: int
    """Bytes it holds besides the model's weights."""


class Model(Protocol):
    """A decoder. The row law holds: a row's result does not depend on the other rows of the pass, bit for bit."""

    config: ModelConfig

    def embed(self, ids: Tensor) -> Tensor:
        """Embed tokens (R,) int64 as (R, D) fp32, without learned positions."""
        ...

    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        taps: tuple[int, ...] = (),
        plan: LayerPlan | None = None,
        inputs: Tensor | None = None,
    ) -> Hidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows.

        Without a `plan` every sublayer is run. `inputs` (R, D) are rows given as vectors: they take the
        place of `embed(tokens)`, and the batch's tokens are not looked at.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (M, V), fp32, of hidden states (M, D)."""
        ...

    def topk(
        self,
        hidden: Tensor,
        k: int,
        *,
        log_normaliser: bool = False,
        logits: Tensor | None = None,
    ) -> TopK:
        """Return the k largest logits of each row and their tokens, k from 1 to V, descending; the normaliser if asked.

        Into `logits` (M, V) fp32, where given, all of them are written, as `head` gives them.
        Of equal ones the lowest id comes first. NaN counts as larger than any number, as in
        `torch.topk`; so `topk(hidden, 1).ids[:, 0]` is `head(hidden).argmax(-1)`. Raises ValueError for another k.
        """
        ...

    def head_rows(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Return the logits (M, n) of some tokens (n,) int64, those of `head(hidden)[:, ids]`, bit for bit."""
        ...

    def head_part(self, ids: Tensor) -> HeadPart:
        """Return the head of some tokens (n,) int64, n from 1: it reads few bytes besides theirs."""
        ...

    def new_cache(
        self,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
        num_checkpoints: int | None = None,
        draft_rows: int = DRAFT_ROWS,
    ) -> KVCache:
        """Return a cache that fits this model. `kv` is how it stores; `auto` what the backend does best.

        `num_blocks` is the memory it has: see `KVCache`. For recurrent states: `num_checkpoints` of them are kept
        besides those of the slots, as many as slots by default, and a draft has at most `draft_rows` nodes.
        """
        ...

    def nbytes(self) -> int:
        """Return the bytes of the weights as held in memory."""
        ...


def head_matrix(model: Model, tokens: Tensor | None, device: torch.device | str = "cpu") -> Tensor:
    """Return the head's rows (n, D) of some tokens (n,), None for all, fp32: what it makes of unit vectors.

    A soft cap of logits is linear near 0, so there the vectors are short.
    """
    size = 1.0 if model.config.logits_cap is None else 2.0**-6
    unit = size * torch.eye(model.config.hidden_size, device=device)
    rows = model.head(unit) if tokens is None else model.head_rows(unit, tokens.to(device))
    return (rows.float().T / size).contiguous()


def reserve_rows(batch: Batch, cache: KVCache) -> None:
    """Make sure that the rows of a pass can be written. Raises CapacityError."""
    for segment in batch.segments:
        stop = segment.base + segment.stop
        if not cache.reserve(segment.slot, stop - cache.length(segment.slot)):
            raise CapacityError(
                f"{stop} rows do not fit a cache of {cache.max_len}: "
                "allow a longer context or stop earlier"
            )


def top_k(logits: Tensor, k: int, *, log_normaliser: bool = False) -> TopK:
    """Choose the tokens of `Model.topk` from logits (M, V)."""
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must be 1 to {logits.shape[1]}, got {k}")
    if k == 1:
        ids = logits.argmax(-1, keepdim=True)
    else:
        more, ids = logits.topk(min(k + 1, logits.shape[1]))
        is_clear = (more[:, :-1] > more[:, 1:]).all(-1).tolist()  # of equal ones torch takes any
        rows = zip(ids[:, :k], is_clear, logits, more, strict=True)
        chosen = [
            own if clear else _first_of_equals(row, largest[:k])
            for own, clear, row, largest in rows
        ]
        ids = torch.stack(chosen) if chosen else logits.new_empty(0, k, dtype=torch.int64)
    # Row by row: torch sums one row in another order than several.
    sums = [row.logsumexp(-1).item() for row in logits] if log_normaliser else None
    norm = None if sums is None else np.array(sums, np.float32)
    return TopK(ids.cpu().numpy(), logits.gather(-1, ids).cpu().numpy(), norm)


def _first_of_equals(row: Tensor, largest: Tensor) -> Tensor:
    """Return the tokens (k,) of the largest logits (k,) of a row (V,); torch takes any of equal ones."""
    ids = (~(row < largest[-1])).nonzero()[:, 0]  # NaN is the largest
    return ids[row[ids].sort(descending=True, stable=True).indices[: len(largest)]]
