"""What the engine and the drafters need of a model: rows in, hidden states out, and the head apart from the body.

R rows of the pass, M rows that need logits, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch
from forerun.core.config import Precision
from forerun.core.types import TopK
from forerun.model.cache.base import KVCache
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig
from forerun.model.shapes import attention_flops, row_share
from forerun.system.device import num_cores

FLOPS_A_BYTE = 6
"""Operations of attention in the time that a byte of weights takes, where nothing is measured yet."""
PROJECTED_ROWS = 1024
"""Rows of the head that are projected together."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """`last` (R, D): the state the head reads, after the final norm. `aux`: outputs of the `aux_layers`, (R, D).

    Those of a device come to the host when they are first read.
    """

    last: Floats
    aux: tuple[Floats, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadPart:
    """The head of some tokens, apart from the others."""

    logits: Callable[[Floats], Floats]
    """Logits (M, n) of its tokens, of hidden states (M, D): those of `Model.head_rows`, bit for bit."""
    nbytes: int
    """Bytes it takes besides the model's weights."""


Noises = Sequence[tuple[int, float] | None]
"""Of each row the key of its noise (`core.random.Noise.key`) and the factor of its logits; None: nothing is drawn."""


class Model(Protocol):
    """A decoder. The row law holds: a row's result does not depend on the other rows of the pass, bit for bit."""

    config: ModelConfig

    @property
    def num_threads(self) -> int:
        """Threads that compute, the caller's included."""
        ...

    def embed(self, ids: Ids) -> Floats:
        """Embed tokens (R,) as (R, D), without learned positions."""
        ...

    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        aux_layers: tuple[int, ...] = (),
        inputs: Floats | None = None,
    ) -> Hidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows.

        `inputs` (R, D) are rows given as vectors: they take the place of `embed(tokens)`, and the batch's tokens
        are not looked at.
        """
        ...

    def head(self, hidden: Floats) -> Floats:
        """Return the logits (M, V) of hidden states (M, D)."""
        ...

    def topk(
        self, hidden: Floats, k: int, *, log_normaliser: bool = False, logits: Floats | None = None
    ) -> TopK:
        """Return the k largest logits of each row and their tokens, k from 1 to V, descending; the normaliser if asked.

        Into `logits` (M, V), where given, all of them are written, as `head` gives them.
        Of equal ones the lowest id comes first. NaN counts as larger than any number, as
        libraries have it; so `topk(hidden, 1).ids[:, 0]` is `head(hidden).argmax(-1)`. Raises ValueError for another k.
        """
        ...

    def head_rows(self, hidden: Floats, ids: Ids) -> Floats:
        """Return the logits (M, n) of some tokens (n,), those of `head(hidden)[:, ids]`, bit for bit."""
        ...

    def head_weights(self, ids: Ids | None) -> Floats:
        """Return the head's rows (n, D) of some tokens (n,), None for all; a soft cap is left out."""
        ...

    def head_part(self, ids: Ids) -> HeadPart:
        """Return the head of some tokens (n,), n from 1: it reads few bytes besides those of these tokens."""
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

    def scratch_nbytes(self, cache: KVCache, num_rows: int, num_nodes: int, head_rows: int) -> int:
        """Return the bytes that passes of `num_rows` rows take besides, with drafts of `num_nodes` nodes.

        Sequences are as long as the cache lets them be; the head computes `head_rows` rows at a time.
        """
        ...


@runtime_checkable
class Draws(Protocol):
    """A model whose states and logits are far from the host: tokens are chosen where they are."""

    def topk_and_draw(
        self,
        hidden: Hidden,
        rows: Sequence[int],
        k: int,
        noises: Noises = (),
        *,
        log_normaliser: bool = False,
        logits: Floats | None = None,
    ) -> tuple[TopK, list[int]]:
        """Return `Model.topk` of some rows (M,) of a pass, ascending, and a token for each of them if there are noises.

        That is `core.random.Noise.draw`'s, -1 where it raises. The pass has been computed when this returns.
        """
        ...


def pass_nbytes(model: Model) -> int:
    """Return about how many bytes of weights a pass of one row reads: of experts those that the row chooses."""
    return round(model.nbytes() * row_share(model.config))


def attention_cost(model: Model) -> Callable[[int], float]:
    """Return what a row's attention costs above a context, in passes of one row above none, by arithmetic."""
    nbytes = pass_nbytes(model)
    return lambda context: attention_flops(model.config, context) / (FLOPS_A_BYTE * nbytes)


def projected_head(model: Model, tokens: Ids | None, right: Floats) -> Floats:
    """Return `head_weights` of some tokens times a matrix (D, p), without holding the whole of the former."""
    ids = np.arange(model.config.vocab_size) if tokens is None else np.asarray(tokens)
    projected = np.empty((len(ids), right.shape[1]), np.float32)

    def project(start: int) -> None:
        part = slice(start, start + PROJECTED_ROWS)
        np.matmul(model.head_weights(ids[part]), right, out=projected[part])

    with ThreadPoolExecutor(num_cores()) as pool:
        list(pool.map(project, range(0, len(ids), PROJECTED_ROWS)))
    return projected
