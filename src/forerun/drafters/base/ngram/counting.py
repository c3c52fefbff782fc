"""Count which tokens follow the last 1 to `order` tokens of a model's texts, and select the contexts worth storing.

Most contexts predict what shorter ones predict already. A context's worth is the number of guesses that it would have
put right in the text itself, each occurrence predicted from the others: the probabilities of its likeliest three tokens
against those of the three that shorter contexts offer. The best contexts for their bytes are stored. On 400k
tokens a tenth of the contexts keeps 99.8 % of tau (dev/LOG.md).

T tokens of text, C contexts of one length, K tokens kept for a context.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.drafters.base.ngram.token_table import PER_BUCKET, PRIOR, PackedTable, grow_hash, pack

Text = tuple[Sequence[int], Sequence[int]]
"""A prompt and the answer to it, as token ids."""
NUM_KEPT = 4
"""Tokens of a context that are stored in a file."""
K = 8
"""Tokens of a context that are looked at."""
RANK_WEIGHTS = (1.0, 0.5, 0.25)
"""A tree holds the likeliest token of a context nearly always, the second and third ever less."""
CALIBRATION = 0.05
"""Worth of a probability that is right by one more, in guessed tokens: sure guesses are followed further."""
MIN_COUNT = 2
"""Times a context must have been seen."""
MIN_SHARE = 5
"""Share of a context's occurrences that a token must have, in 255ths."""

Ints = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float32]

_CHUNK = 1 << 13


@dataclass(frozen=True, slots=True)
class Level:
    """The contexts of one length that came again: hashes (C,), counts (C,), what each is worth (C,).

    `tokens` (C, NUM_KEPT) are those that followed most often, -1 for none, `token_counts` how often.
    """

    hashes: NDArray[np.uint64]
    counts: Ints
    tokens: Ints
    token_counts: Floats
    worth: Floats


@dataclass(frozen=True, slots=True)
class Counted:
    """A level for contexts of 1, 2, ... tokens, and the number of tokens they were counted on."""

    levels: tuple[Level, ...]
    num_tokens: int


def count_contexts(texts: Iterable[Text], order: int) -> Counted:
    """Count the contexts of the answers; prompts are only contexts of what follows them."""
    parts = [(np.array([*prompt, *answer], np.int32), len(prompt)) for prompt, answer in texts]
    tokens = np.concatenate([np.zeros(0, np.int32), *(part for part, _ in parts)])
    depth = np.concatenate([np.zeros(0, np.int64), *(np.arange(len(part)) for part, _ in parts)])
    is_answer = np.concatenate(
        [np.zeros(0, bool), *(np.arange(len(part)) >= begin for part, begin in parts)]
    )
    positions = np.flatnonzero(is_answer)
    hashes = np.zeros(len(positions), np.uint64)
    lower: tuple[Ints, Ints, Floats] | None = (
        None  # of each position its context; of each context its guesses
    )
    levels = []
    for n in range(1, order + 1):
        deep = np.flatnonzero(depth[positions] >= n)
        grown = grow_hash(hashes[deep], tokens[positions[deep] - n].astype(np.uint64))
        again = _come_again(grown)
        deep, hashes = deep[again], grown[again]
        positions = positions[deep]
        if lower is not None:
            lower = lower[0][deep], lower[1], lower[2]
        level, contexts, best, probabilities = _level(hashes, tokens[positions], lower)
        levels.append(level)
        lower = contexts, best, probabilities
    return Counted(tuple(levels), int(is_answer.sum()))


def _come_again(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Tell (T,) which positions' contexts are counted; a longer one of another position cannot come again either."""
    _, context, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    return counts[context] >= MIN_COUNT


def _level(
    hashes: NDArray[np.uint64], follows: Ints, lower: tuple[Ints, Ints, Floats] | None
) -> tuple[Level, Ints, Ints, Floats]:
    """Return the contexts of positions, the context of each, and the K best tokens of each with probabilities."""
    order = np.lexsort((follows, hashes))
    by_hash, by_token = hashes[order], follows[order]
    new_context = _changes(by_hash)
    context_of = np.cumsum(new_context) - 1
    contexts = np.empty(len(hashes), np.int64)
    contexts[order] = context_of
    first = np.flatnonzero(new_context)
    counts = np.diff(first, append=len(hashes))
    pair_at = np.flatnonzero(new_context | _changes(by_token))
    pair_counts = np.diff(pair_at, append=len(hashes))
    pair_context, pair_token = context_of[pair_at], by_token[pair_at]
    ranked = np.lexsort((pair_token, -pair_counts, pair_context))
    pair_context, pair_token, pair_counts = (
        pair_context[ranked],
        pair_token[ranked],
        pair_counts[ranked],
    )
    starts = np.flatnonzero(_changes(pair_context))
    rank = np.arange(len(pair_context)) - starts[pair_context]
    top = rank < K
    tokens = np.full((len(counts), K), -1, np.int32)
    token_counts = np.zeros((len(counts), K), np.float32)
    tokens[pair_context[top], rank[top]] = pair_token[top]
    token_counts[pair_context[top], rank[top]] = pair_counts[top]
    best, probabilities = np.empty_like(tokens), np.empty_like(token_counts)
    worth = np.empty(len(counts), np.float32)
    for at in range(0, len(counts), _CHUNK):
        part = slice(at, at + _CHUNK)
        if lower is None:
            old, old_probabilities = (
                np.full_like(tokens[part], -1),
                np.zeros_like(token_counts[part]),
            )
        else:
            mine = lower[0][order[first[part]]]
            old, old_probabilities = lower[1][mine], lower[2][mine]
        best[part], probabilities[part], worth[part] = _blend(
            counts[part], tokens[part], token_counts[part], old, old_probabilities
        )
    stored = tokens[:, :NUM_KEPT].copy(), token_counts[:, :NUM_KEPT].copy()
    return Level(by_hash[first], counts, *stored, worth), contexts, best, probabilities


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell for each value whether it differs from the one before it."""
    changes: NDArray[np.bool_] = np.r_[True, values[1:] != values[:-1]][: len(values)]
    return changes


def _blend(
    counts: Ints, tokens: Ints, token_counts: Floats, old: Ints, old_probabilities: Floats
) -> tuple[Ints, Floats, Floats]:
    """Blend counts with shorter contexts: the likeliest tokens (C, K), their probabilities, the worths (C,)."""
    total = (counts + PRIOR).astype(np.float32)[:, None]
    same = (tokens[:, :, None] == old[:, None, :]) & (tokens[:, :, None] >= 0)  # (C, K, K)
    probabilities = (
        token_counts / total + (same * old_probabilities[:, None, :]).sum(-1) * PRIOR / total
    )
    others = np.where(same.any(1), -1, old)
    other_probabilities = np.where(others >= 0, old_probabilities * PRIOR / total, 0)
    all_tokens = np.concatenate([tokens, others], 1)
    all_probabilities = np.concatenate(
        [np.where(tokens >= 0, probabilities, 0), other_probabilities], 1
    )
    ranked = np.argsort(-all_probabilities, 1, kind="stable")[:, :K]
    best = np.take_along_axis(all_tokens, ranked, 1)
    best_probabilities = np.take_along_axis(all_probabilities, ranked, 1).astype(np.float32)
    weights, num = np.array(RANK_WEIGHTS, np.float32), len(RANK_WEIGHTS)

    def right(offered: Ints) -> Floats:  # occurrences that the offered tokens guess, by rank
        hits = (offered[:, :num, None] == tokens[:, None, :]) & (offered[:, :num, None] >= 0)
        by_rank: Floats = (hits * token_counts[:, None, :]).sum(-1)
        return np.asarray((by_rank * weights).sum(-1), np.float32)

    put_right = right(best) - right(old)
    before = ((best[:, :num, None] == old[:, None, :]) * old_probabilities[:, None, :]).sum(-1)
    shift = np.abs(best_probabilities[:, :num] - before).sum(-1) * counts
    return best, best_probabilities, (put_right + CALIBRATION * shift).astype(np.float32)


def id_nbytes(vocab_size: int) -> int:
    """Return the bytes of a token id in a table."""
    return 2 if vocab_size <= 1 << 16 else 3


def make(texts: Iterable[Text], order: int, nbytes: int, token_nbytes: int) -> PackedTable:
    """Count the answers and make a table of at most `nbytes`."""
    return cut(count_contexts(texts, order), nbytes, token_nbytes)


def cut(counted: Counted, nbytes: int, token_nbytes: int) -> PackedTable:
    """Make a table of the contexts that are worth most for their bytes, single tokens first."""
    levels = counted.levels
    hashes = np.concatenate([level.hashes for level in levels])
    counts = np.concatenate([level.counts for level in levels])
    tokens = np.concatenate([level.tokens for level in levels])
    shares = np.concatenate([level.token_counts for level in levels])
    worth = np.concatenate([level.worth for level in levels])
    shares = np.rint(255 * shares / counts[:, None]).astype(np.int64)
    tokens = np.where(shares >= MIN_SHARE, tokens, -1)
    sizes = 4 + (tokens >= 0).sum(1) * (token_nbytes + 1) + 4 / PER_BUCKET
    density = worth / sizes
    density[: len(levels[0].counts)] += 1 + density.max(initial=0)
    order = np.argsort(-density, kind="stable")[: int((density > 0).sum())]
    order = order[: int(np.searchsorted(np.cumsum(sizes[order]), nbytes - 8, "right"))]
    offsets, data = pack(hashes[order], counts[order], tokens[order], shares[order], token_nbytes)
    return PackedTable(offsets, data, len(levels), token_nbytes, counted.num_tokens, len(order))
