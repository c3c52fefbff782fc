"""From one row of logits to a token: the only place where logits become probabilities.

The drafters and the verifier use the same functions, so what is drawn, stored and verified is one
and the same row. Which guesses are accepted is decided in `verify`; when a sequence ends, in
`stops`.

Rows are warped one at a time, on the host: at this size NumPy is faster than torch, and its single
thread makes a row's result depend neither on its neighbours nor on the number of threads.

The order is: banned tokens (ends before `min_tokens`, the grammar's mask), logit bias, repetition,
frequency and presence penalties, temperature, top-k, top-p, min-p. Each filter sees what the one
before it left, renormalised. Wherever tokens are ranked, the lower id comes first among equals.

V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.params import SamplingParams
from forerun.core.random import Stream, uniform
from forerun.core.types import TokenLogprob

Tokens = Sequence[int] | NDArray[np.int64]
Row = NDArray[np.float32]

MIN_TEMPERATURE = 1e-5  # below it, fp32 can hardly tell the distribution from the greedy choice
NUM_CANDIDATES = 1024  # the nucleus is looked for among that many tokens before all are sorted
DRAW_BLOCK = 256  # ids summed up at once when a token is drawn


def end_ids(params: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """The token ids that end a sequence."""
    ends = frozenset(params.stop_token_ids)
    return ends if params.ignore_eos else ends | eos_ids


def is_plain(params: SamplingParams) -> bool:
    """True if the logits are used as they are: no penalties, no bias, no token ever banned."""
    return not (params.has_penalties or params.logit_bias or params.min_tokens)


def choose(
    logits: Tensor,
    params: SamplingParams,
    *,
    seed: int,
    prompt: Tokens,
    generated: Tokens,
    eos_ids: frozenset[int] = frozenset(),
    mask: Tensor | None = None,
) -> int:
    """The token plain decoding takes after `prompt` and `generated`. Arguments as for `warp`.

    Greedy takes the largest logit, the lowest id among equals. Otherwise the token is drawn with
    the number that belongs to `seed` and the token's position, whoever asks.
    """
    row = _adjust(_host(logits), params, prompt, generated, eos_ids, mask)
    if params.is_greedy:
        return int(row.argmax())
    position = len(prompt) + len(generated)
    return _draw(_warp(row, params), uniform(seed, Stream.TARGET, position))


def warp(
    logits: Tensor,
    params: SamplingParams,
    *,
    prompt: Tokens,
    generated: Tokens,
    eos_ids: frozenset[int] = frozenset(),
    mask: Tensor | None = None,
) -> Tensor:
    """Probabilities (V,), fp32, on the CPU, of the token after `prompt` and `generated`.

    `logits` (V,), fp32, are the model's own; `eos_ids` its end tokens, which a request may ignore.
    `mask` (V,), bool, is true for the tokens a grammar allows. Temperature 0 gives a one-hot row.
    """
    return torch.from_numpy(
        _warp(_adjust(_host(logits), params, prompt, generated, eos_ids, mask), params)
    )


def draw(probs: Tensor, u: float) -> int:
    """The token, in id order, at which the sum of `probs` (V,) passes the share `u`, in [0, 1).

    `probs` is fp32 or fp64 and need not sum to 1. A token of probability zero is never drawn; a row
    of nothing else raises ValueError.
    """
    return _draw(_host(probs), u)


def logprobs(logits: Tensor, token: int, num_top: int) -> TokenLogprob:
    """What the model itself, before any warping, thinks of `token` and of the likeliest tokens.

    `logits` (V,) are raw; `num_top` of the likeliest are reported, all if there are fewer.
    """
    row = _host(logits)
    shifted = row - row.max()
    log_probs = shifted - np.log(np.exp(shifted).sum(dtype=np.float64))
    rank = 1 + int((row > row[token]).sum() + (row[:token] == row[token]).sum())
    top = _likeliest(row, min(num_top, len(row))) if num_top else ()
    return TokenLogprob(
        token, float(log_probs[token]), rank, tuple((int(i), float(log_probs[i])) for i in top)
    )


def _host(row: Tensor) -> Row:
    array: Row = row.detach().cpu().numpy()
    return array


def _adjust(
    row: Row,
    params: SamplingParams,
    prompt: Tokens,
    generated: Tokens,
    eos_ids: frozenset[int],
    mask: Tensor | None,
) -> Row:
    """Ban, bias and penalise: the logits that the greedy choice and the softmax see."""
    if mask is None and is_plain(params):
        return row
    row = row.copy()
    if mask is not None:
        row[~mask.cpu().numpy()] = -np.inf
    if len(generated) < params.min_tokens:
        row[_ids(end_ids(params, eos_ids), row)] = -np.inf
    for token, bias in params.logit_bias.items():
        row[token : token + 1] += np.float32(bias)  # a slice may lie beyond the row
    if params.has_penalties:
        _penalise(row, params, _ids(prompt, row), _ids(generated, row))
    return row


def _penalise(
    row: Row, params: SamplingParams, prompt: NDArray[np.int64], generated: NDArray[np.int64]
) -> None:
    seen = np.concatenate([prompt, generated])
    values = row[seen]
    factor = np.float32(params.repetition_penalty)
    row[seen] = np.where(values > 0, values / factor, values * factor)
    emitted, counts = np.unique(generated, return_counts=True)
    row[emitted] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)


def _ids(tokens: Iterable[int], row: Row) -> NDArray[np.int64]:
    """Token ids as an array, without those beyond the row: a draft's vocabulary may be narrower."""
    ids = tokens if isinstance(tokens, np.ndarray) else np.array([*tokens], dtype=np.int64)
    return ids[ids < len(row)]


def _warp(row: Row, params: SamplingParams) -> Row:
    if params.is_greedy:
        one_hot = np.zeros_like(row)
        one_hot[row.argmax()] = 1
        return one_hot
    row = row / np.float32(max(params.temperature, MIN_TEMPERATURE))
    probs = np.exp(row - row.max())
    probs /= np.float32(probs.sum(dtype=np.float64))
    return _filter(probs, params)


def _filter(probs: Row, params: SamplingParams) -> Row:
    """Apply top-k, top-p and min-p: each keeps the first so many tokens of one ranking."""
    num_all = len(probs)
    limit = min(params.top_k, num_all) if params.top_k > 0 else num_all
    if params.top_p == 1 and params.min_p == 0:
        return probs if limit == num_all else _keep(probs, _largest(probs, limit))
    size = limit if params.top_k > 0 else min(limit, NUM_CANDIDATES)
    values = _largest(probs, size)
    length = _passing(values, params)
    if length == size < limit:
        values = _largest(probs, limit)
        length = _passing(values, params)
    return _keep(probs, values[:length])


def _passing(values: Row, params: SamplingParams) -> int:
    """How many of the ranked probabilities pass top-p and min-p; top-k has cut them already."""
    length = len(values)
    if params.top_p < 1:
        collected = values.cumsum(dtype=np.float64)
        total = collected[-1] if params.top_k > 0 else 1.0
        length = min(length, 1 + int(collected.searchsorted(params.top_p * total)))
    if params.min_p > 0:
        length = min(length, int((values >= np.float32(params.min_p) * values[0]).sum()))
    return length


def _keep(probs: Row, values: Row) -> Row:
    """The probabilities `values`, the largest ones in descending order, renormalised; else zero."""
    ids = np.flatnonzero(probs >= values[-1])
    surplus = len(ids) - len(values)
    if surplus:  # the last of the equals at the border
        ties = np.flatnonzero(probs[ids] == values[-1])
        ids = np.delete(ids, ties[-surplus:])
    kept = np.zeros_like(probs)
    kept[ids] = probs[ids] / np.float32(values.sum(dtype=np.float64))
    return kept


def _largest(row: Row, n: int) -> Row:
    """The `n` largest values, in descending order."""
    first = len(row) - n
    largest: Row = np.sort(np.partition(row, first)[first:])[::-1]
    return largest


def _likeliest(row: Row, n: int) -> NDArray[np.intp]:
    """Ids of the `n` largest values, largest first, lower id first among equals."""
    ids = np.flatnonzero(row >= _largest(row, n)[-1])
    return ids[np.argsort(-row[ids], kind="stable")][:n]


def _draw(probs: Row, u: float) -> int:
    """Find the block of ids in which the running sum passes u of the total, then the id in it."""
    starts = np.arange(0, len(probs), DRAW_BLOCK)
    ends = np.add.reduceat(probs, starts, dtype=np.float64).cumsum()
    if not 0 < ends[-1] < np.inf:
        raise ValueError("a row without probability mass: the logits are not finite or all banned")
    goal = u * ends[-1]  # below the total for every u < 1, also after rounding
    block = int(ends.searchsorted(goal, side="right"))
    before = ends[block - 1] if block else 0.0
    inside = probs[starts[block] : starts[block] + DRAW_BLOCK].cumsum(dtype=np.float64)
    # The two sums may differ in the last bit: stay on the block's last token that has mass.
    last = inside.searchsorted(inside[-1])
    return int(starts[block] + min(inside.searchsorted(goal - before, side="right"), last))
