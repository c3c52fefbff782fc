"""Logits as a family has them, and the largest of them: for one a row, none of the others leaves the device.

M rows that need logits, V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
from torch import Tensor

from forerun.core.arrays import Floats, Ids
from forerun.core.types import TopK
from forerun.gpu.kernels import add_totals, choose, choose_of_blocks, finish_logits
from forerun.gpu.layers import cap_factors
from forerun.gpu.numbers import LAUNCH
from forerun.model.config import ModelConfig

CHOSEN_TOGETHER = 128
"""Logits of which a program finds the largest: kHeadTiles tiles of csrc/model/pass.h, whose order sums have."""
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


def top_k(logits: Tensor, k: int, *, log_normaliser: bool) -> TopK:
    """Return the tokens of `Model.topk` of logits (M, V)."""
    num, vocab = logits.shape
    blocks = triton.cdiv(vocab, CHOSEN_TOGETHER)
    largest, totals = (torch.empty(num, blocks, device=logits.device) for _ in range(2))
    found = torch.empty(num, blocks, dtype=torch.int32, device=logits.device)
    choose[(num, blocks)](
        logits, largest, found, totals, vocab, blocks, BLOCK=CHOSEN_TOGETHER, **LAUNCH
    )
    if k == 1:
        best = torch.empty(num, 2, dtype=torch.int32, device=logits.device)
        wide = triton.next_power_of_2(blocks)
        choose_of_blocks[(num,)](largest, found, best, blocks, WIDE=wide, **LAUNCH)
        host = best.cpu().numpy()  # eight bytes a row
        ids, values = host[:, :1].astype(np.int64), host[:, 1:].view(np.float32)
    else:
        host = logits.cpu().numpy()
        ids = np.array([_largest_ids(row, k) for row in host], np.int64).reshape(num, k)
        values = np.take_along_axis(host, ids, 1)
    return TopK(ids, values, _log_sums(largest, totals) if log_normaliser else None)


def _log_sums(largest: Tensor, totals: Tensor) -> Floats:
    """Return the logarithms of rows' sums of e^logit (M,), which the C library takes."""
    num, blocks = largest.shape
    top, total = (torch.empty(num, device=largest.device) for _ in range(2))
    add_totals[(num,)](largest, totals, top, total, blocks, **LAUNCH)
    return np.array([_log_sum(*pair) for pair in zip(top.tolist(), total.tolist())], np.float32)


def _log_sum(top: float, total: float) -> float:
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
