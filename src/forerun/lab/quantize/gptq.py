"""Rounding column by column, later columns making up for earlier ones. GPTQ: Frantar et al., arXiv 2210.17323.

As LDLQ, which gives the same codes (Chee et al., arXiv 2307.13304) and needs one factor of the Gram matrix and no
inverse: with G = (1 + U) D (1 + U)^T a column's goal is its weights and, U times, what the columns before it lack.
N rows (outputs), K columns (inputs), G groups of columns share a scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core.errors import LoadError

_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class Feedback:
    """How columns make up for others: their order (K,), small inputs first, and a lower factor (K, K) of unit diagonal.

    They are rounded from the last to the first: those with large inputs first.
    """

    order: Tensor
    lower: Tensor

    @classmethod
    def of(cls, gram: Tensor, num_tokens: int) -> Feedback:
        """Factor the Gram matrix (K, K), fp32, a mean over tokens. Raises LoadError if it is not finite.

        K tokens of white noise are added to those seen, as large as they are in the mean. The paper's damping, 1 % of
        the diagonal's mean, is about that for its 262,144 tokens; with fewer it takes chance for structure.
        """
        diagonal = gram.diag()
        order = diagonal.argsort()
        damping = len(gram) / num_tokens * float(diagonal.mean()) + 1e-30
        while math.isfinite(damping):
            ordered = gram[order[:, None], order]
            ordered.diagonal().add_(damping)
            lower, failed = torch.linalg.cholesky_ex(ordered)
            if not int(failed):
                del ordered
                return cls(order, lower.div_(lower.diag().clone()))
            damping *= 10
        raise LoadError("the text to calibrate on gives NaN or infinity inside the model")


def compensated(
    weight: Tensor, feedback: Feedback, scales: Tensor, zeros: Tensor, limits: tuple[int, int]
) -> Tensor:
    """Codes (N, K), int16, of a matrix (N, K) for scales and zero points (N, G): weight = scale * (code - zero)."""
    num_in = weight.shape[1]
    width = num_in // scales.shape[1]
    lower, order = feedback.lower, feedback.order.tolist()
    scales, zeros = scales.T.contiguous(), zeros.T.contiguous()
    lacking = weight.T[feedback.order]  # (K, N): what is left of a column when it is rounded
    codes = torch.empty_like(lacking, dtype=torch.int16)
    for stop in range(num_in, 0, -_COLUMNS):
        start = max(0, stop - _COLUMNS)
        owed = lower[stop:, start:stop].T @ lacking[stop:]
        for j in range(stop - 1, start - 1, -1):
            group = order[j] // width
            goal = lacking[j] + owed[j - start] + lower[j + 1 : stop, j] @ lacking[j + 1 : stop]
            code = (torch.round(goal / scales[group]) + zeros[group]).clamp_(*limits)
            codes[order[j]] = code
            lacking[j] -= (code - zeros[group]) * scales[group]
    return codes.T
