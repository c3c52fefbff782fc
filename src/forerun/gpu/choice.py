"""Logits as a family has them, and tokens that are chosen from them: the largest, and those drawn with the CPU's noise.

Of a row these leave the device, not its logits. M rows that need logits, V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
from torch import Tensor

from forerun.core.arrays import Floats, Ids
from forerun.core.types import TopK
from forerun.gpu.host import to_device, to_host
from forerun.gpu.layers import cap_factors
from forerun.gpu.numbers import LAUNCH
from forerun.gpu.scores import add_totals, choose, choose_of_blocks, finish_logits
from forerun.model.config import ModelConfig
from forerun.model.model import Noises

CHOSEN_TOGETHER = 128
"""Logits of which a program finds the largest: kHeadTiles tiles of csrc/model/pass.h, whose order sums have."""
MOST_CHOSEN = 16
"""More of a row are looked for on the host."""
_FINISHED_TOGETHER = 1024


def finish(logits: Tensor, config: ModelConfig) -> None:
    """Cap and divide logits (M, V) in place, where the family does."""
    cap, divisor = config.logits_cap, config.logits_divisor
    if cap is None and divisor == 1:
        return
    num, vocab = logits.shape
    finish_logits[(num, triton.cdiv(vocab, _FINISHED_TOGETHER))](
        logits, *cap_factors(cap or 1.0), divisor, vocab,
        HAS_CAP=cap is not None, HAS_DIVISOR=divisor != 1, BLOCK=_FINISHED_TOGETHER, **LAUNCH,
    )  # fmt: skip


def top_k(
    logits: Tensor, k: int, *, log_normaliser: bool, noises: Noises = ()
) -> tuple[TopK, list[int]]:
    """Return the tokens of `Model.topk` of logits (M, V), and those drawn, if there are noises.

    One copy brings them to the host: of a row 8 bytes for each, and 8 for the normaliser.
    """
    num, on_device = len(logits), min(k, MOST_CHOSEN)
    columns = on_device + log_normaliser + bool(noises)
    record = torch.empty(num, columns, 2, dtype=torch.int32, device=logits.device)
    largest, totals = _largest(logits, on_device, record, 0)
    if log_normaliser:
        blocks = totals.shape[1]
        given = record[:, on_device:], blocks, on_device, 2 * columns
        add_totals[(num,)](largest, totals, *given, **LAUNCH)
    if noises:
        _largest(logits, 1, record, columns - 1, to_device(_words(noises), logits.device))
    host = to_host(record)
    values = host.view(np.float32)[..., 1]
    norm = None
    if log_normaliser:
        norm = np.array(
            [_log_sum(*pair) for pair in host[:, on_device].view(np.float32).tolist()], np.float32
        )
    drawn = np.where(np.isfinite(values[:, -1]), host[:, -1, 0], -1).tolist() if noises else []
    if k > on_device:
        rows = to_host(logits)
        ids = np.array([_largest_ids(row, k) for row in rows], np.int64).reshape(num, k)
        return TopK(ids, np.take_along_axis(rows, ids, 1), norm), drawn
    return TopK(host[:, :k, 0].astype(np.int64), values[:, :k].copy(), norm), drawn


def _largest(
    logits: Tensor, k: int, record: Tensor, column: int, noises: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Write the k largest of rows, or scores, from a column of the record on; return them by blocks, and sums."""
    num, vocab = logits.shape
    blocks, columns = triton.cdiv(vocab, CHOSEN_TOGETHER), record.shape[1]
    largest, totals = (torch.empty(num, n, device=logits.device) for n in (blocks * k, blocks))
    found = torch.empty(num, blocks * k, dtype=torch.int32, device=logits.device)
    choose[(num, blocks)](
        logits, found if noises is None else noises, largest, found, totals, vocab, blocks,
        K=k, IS_DRAWN=noises is not None, BLOCK=CHOSEN_TOGETHER, **LAUNCH,
    )  # fmt: skip
    wide = triton.next_power_of_2(blocks * k)
    given = record[:, column:], blocks * k, 2 * columns
    choose_of_blocks[(num,)](largest, found, *given, K=k, WIDE=wide, **launch_of(wide))
    return largest, totals


def _words(noises: Noises) -> np.ndarray:
    """Return keys in two words, and the bits of factors (M, 3)."""
    keys, factors = zip(*(each or (0, 1.0) for each in noises), strict=True)
    words = np.empty((len(noises), 3), np.int32)
    words[:, :2] = np.array(keys, "<u8").view("<i4").reshape(-1, 2)
    words[:, 2] = np.array(factors, np.float32).view(np.int32)
    return words


def _log_sum(top: float, total: float) -> float:
    """Return the logarithm of a row's sum of e^logit, which the C library takes."""
    if math.isnan(total) or math.isinf(top):
        return total if math.isnan(total) else top
    return top + math.log(total)


def _largest_ids(row: Floats, k: int) -> Ids:
    """Return the tokens (k,) of a row's largest logits, descending; NaN first, of equal ones the lowest id."""
    order = np.where(np.isnan(row), np.inf, row)
    least = np.partition(order, -k)[-k]
    ids = np.flatnonzero(order >= least)
    keys = (ids, -order[ids], ~np.isnan(row[ids]))
    return ids[np.lexsort(keys)][:k]


def launch_of(wide: int) -> dict[str, int | bool]:
    """Return how `choose_of_blocks` is launched, so that a program which holds so many numbers spills none."""
    return LAUNCH | {"num_warps": min(32, max(4, wide // 512))}
