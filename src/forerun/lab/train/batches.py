"""Pieces of replies, shuffled and packed into batches, the same ones for a seed whenever they are made.

A piece is a run of rows of one reply that a drafter learns to guess from. What its guesses are compared with lies in
the rows after it, so a piece never reaches the reply's last `depth` rows. Replies are taken a pool at a time: states
are computed for one pool, and its pieces are shuffled among themselves.

R rows of a batch, N of them learned from, K steps, V' draft vocabulary, D hidden width, T aux layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from forerun.core.arrays import Ids
from forerun.lab.train.replies import Reply
from forerun.lab.train.states import NoStates, StateReader
from forerun.model.model import Model

POOL = 256
"""Replies whose pieces are shuffled together."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` to `stop` of a reply are learned from."""

    reply: Reply
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """Where a piece's rows lie in a batch: from `first` on, those learned from are `start` to `stop`."""

    first: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Rows of several pieces one after the other, each with what follows it."""

    last: Tensor
    """(R, D) fp32."""
    aux: Tensor
    """(R, T D) fp32."""
    tokens: Tensor
    """(R,) int64: what row r has read."""
    following: Tensor
    """(R,) int64: the text's own next token."""
    best: Tensor
    """(R,) int64: the target's likeliest next token."""
    log_normaliser: Tensor
    at: Tensor
    """(N,) int64: the rows learned from."""
    pieces: tuple[PackedPiece, ...]

    def embedded(self, model: Model) -> Tensor:
        """Embed the tokens as a model does, (R, D) fp32."""
        rows = torch.from_numpy(model.embed(self.tokens.cpu().numpy()))
        return rows.to(self.tokens.device)

    def to(self, device: torch.device) -> TrainBatch:
        """Move it to a device."""
        parts = {n: part for n in _TENSORS if (part := getattr(self, n)).device != device}
        return replace(self, **{name: part.to(device) for name, part in parts.items()})


_TENSORS = [each.name for each in fields(TrainBatch) if each.name != "pieces"]


def lengths(replies: Sequence[Reply], depth: int) -> int:
    """Count the rows of an epoch that are learned from."""
    return sum(max(0, reply.num_learned - depth) for reply in replies)


def first_pool(replies: Sequence[Reply], seed: Sequence[int] = (0, 1, 0)) -> Sequence[Reply]:
    """Return the replies that an epoch reads first; unless told, the first on replies of a run with seed 0."""
    return _shuffled(replies, seed)[1][:POOL]


def epoch(
    replies: Sequence[Reply], depth: int, width: int | None, size: int, seed: Sequence[int]
) -> Iterator[list[Piece]]:
    """Yield the batches of one epoch, of about `size` rows; pieces of `width` rows, None for whole replies."""
    random, order = _shuffled(replies, seed)
    left: list[Piece] = []
    for start in range(0, len(order), POOL):
        pool = order[start : start + POOL]
        pieces = [piece for reply in pool for piece in _cut(reply, depth, width, random)]
        for i in random.permutation(len(pieces)):
            left.append(pieces[i])
            if sum(piece.stop - piece.start for piece in left) >= size:
                yield left
                left = []
    if left:
        yield left


def _shuffled(
    replies: Sequence[Reply], seed: Sequence[int]
) -> tuple[np.random.Generator, list[Reply]]:
    random = np.random.default_rng(list(seed))
    return random, [replies[i] for i in random.permutation(len(replies))]


def whole_piece(reply: Reply, depth: int) -> Piece | None:
    """Return all rows of a reply that can be learned from; None if it is too short."""
    first, stop = reply.first - 1, len(reply.tokens) - 1 - depth
    return Piece(reply, first, stop) if stop > first else None


def _cut(
    reply: Reply, depth: int, width: int | None, random: np.random.Generator
) -> Iterator[Piece]:
    piece = whole_piece(reply, depth)
    if piece is None:
        return
    if width is None:
        yield piece
        return
    start = piece.start - int(random.integers(width))
    while start < piece.stop:
        yield Piece(reply, max(start, piece.start), min(start + width, piece.stop))
        start += width


def pack(pieces: Sequence[Piece], depth: int, read: StateReader | NoStates) -> TrainBatch:
    """Join states and tokens of pieces and the `depth` rows after each; from a text's start if the reader has it."""
    columns: list[list[Tensor]] = [[], [], [], [], [], []]
    packed, at, offset = [], [], 0
    for piece in pieces:
        states = read(piece.reply)
        first = states.start if read.all_rows else piece.start
        rows = slice(first - states.start, piece.stop + depth - states.start)
        text = torch.tensor(piece.reply.tokens[first : piece.stop + depth + 1])
        tokens, following = text[:-1], text[1:]
        of_states = (states.last, states.aux, states.best, states.log_normaliser)
        parts = (tokens, following, *(s[rows] for s in of_states))
        for column, part in zip(columns, parts, strict=True):
            column.append(part)
        start, stop = offset + piece.start - first, offset + piece.stop - first
        packed.append(PackedPiece(offset, start, stop))
        at.append(torch.arange(start, stop))
        offset += len(tokens)
    tokens, following, last, aux, best, normaliser = (torch.cat(column) for column in columns)
    return TrainBatch(
        last.float(),
        aux.float(),
        tokens,
        following,
        best,
        normaliser,
        torch.cat(at),
        tuple(packed),
    )


def teacher(batch: TrainBatch, read: StateReader, ids: Ids) -> Tensor:
    """Return the target's probabilities (R, V') bf16 of the draft vocabulary in each row, as it is read."""
    logits = read.logits(batch.last, ids)
    return (logits - batch.log_normaliser[:, None]).exp_().bfloat16()


def own_tokens(batch: TrainBatch, ids: Ids) -> Tensor:
    """Return ones (R, V') bf16 at each row's own next token, nothing where the draft vocabulary lacks it."""
    known = torch.from_numpy(ids).to(batch.following.device)
    at = torch.searchsorted(known, batch.following).clamp_(max=len(ids) - 1)
    found = (known[at] == batch.following).bfloat16()
    ones = found.new_zeros(len(at), len(ids))
    return ones.scatter_(1, at[:, None], found[:, None])
