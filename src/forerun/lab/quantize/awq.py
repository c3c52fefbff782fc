"""AWQ: activation-aware scales of input channels. Lin et al., arXiv 2306.00978.

A layer's inputs are known by two statistics: the mean of |x| of each channel and the Gram matrix X^T X / T, from which
the error of any rounded weight on all T tokens follows: mean |x D^T|^2 = tr(D G D^T) for D = rounded - weight.
N rows (outputs), K columns (inputs), g columns share a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.lab.quantize.grid import Grid

RATIOS = 20
"""Exponents that are tried: 0, 1/20, ... 19/20."""
CLIPS = tuple(1 - i / 20 for i in range(10))
"""Shares of a group's largest weight that are tried as its range."""
_LEAST = 1e-4
_SAMPLED_ROWS = 256
"""Of a matrix, or of those that share scales, that the scales are tried on."""
_ROWS_AT_A_TIME = 256
_NUMBERS_AT_A_TIME = 1 << 18
"""Of a matrix, so that a step's copies of them stay small."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What calibration saw of a layer's inputs x: means of |x| (K,) and x^T x (K, K), largest |x| (K,), some rows."""

    num_tokens: int
    magnitude: Tensor
    gram: Tensor
    largest: Tensor
    sample: Tensor
    """(S, K)."""

    def divided(self, scales: Tensor) -> Inputs:
        """Return the statistics of inputs divided by scales (K,)."""
        gram = (self.gram / scales).div_(scales[:, None])
        linear = (self.magnitude, self.largest, self.sample)
        magnitude, largest, sample = (part / scales for part in linear)
        return Inputs(self.num_tokens, magnitude, gram, largest, sample)

    def error(self, difference: Tensor) -> float:
        """Return the mean square of a difference of weights (N, K) times the inputs, summed over rows."""
        parts = difference.split(_ROWS_AT_A_TIME)
        return sum(float(((part @ self.gram) * part).sum(dtype=torch.float64)) for part in parts)


def search_scales(
    weights: Sequence[Tensor],
    inputs: Inputs,
    grid: Grid,
    output_error: Callable[[Sequence[Tensor]], float] | None = None,
) -> Tensor:
    """Scales (K,) of the inputs that the matrices (N_i, K) share: those whose rounding errs least (section 3.2).

    Rounding W diag(s) and dividing by s again protects the columns with large s. Tried are
    s = magnitude^r / weight^(1 - r), as AutoAWQ does, and s = 1. `output_error` says how far what the matrices are
    part of is off with others in their place, as published; without it some of their own rows are compared.
    """
    num_rows = sum(map(len, weights))
    size = sum(mean_weight(w, grid) * (len(w) / num_rows) for w in weights)
    if output_error is None:
        step = max(1, num_rows // _SAMPLED_ROWS)
        weights = [torch.cat([w[::step] for w in weights])]

    def error_of(scales: Tensor) -> float:
        rounded = [grid.nearest(w * scales) / scales for w in weights]
        return (
            inputs.error(rounded[0] - weights[0]) if output_error is None else output_error(rounded)
        )

    best = torch.ones_like(inputs.magnitude)
    least = error_of(best)
    for step in range(RATIOS):
        ratio = step / RATIOS
        scales = inputs.magnitude**ratio / (size ** (1 - ratio) + _LEAST)
        scales = scales.clamp(min=_LEAST)
        scales /= torch.sqrt(scales.max() * scales.min())
        error = error_of(scales)
        if error < least:
            best, least = scales, error
    return best


def clipped(weight: Tensor, inputs: Inputs, grid: Grid) -> Tensor:
    """Return a matrix (N, K) whose groups are cut off where their rounding then errs least, each by itself.

    Published with AWQ's code, not in the paper. A group's error is that of its own share of the outputs.
    """
    width = grid.width(weight.shape[1])
    groups = weight.view(len(weight), -1, width)  # (N, G, g)
    starts = range(0, weight.shape[1], width)
    gram = torch.stack([inputs.gram[i : i + width, i : i + width] for i in starts])
    largest = groups.abs().amax(-1, keepdim=True)
    best, least = groups.clone(), torch.full_like(groups[..., 0], torch.inf)
    for share in CLIPS:
        cut = groups.clamp(-largest * share, largest * share)
        off = (grid.nearest(cut.reshape(weight.shape)).view_as(groups) - groups).transpose(0, 1)
        error = ((off @ gram) * off).sum(-1).T
        is_less = error < least
        least = torch.where(is_less, error, least)
        best = torch.where(is_less[..., None], cut, best)
    return best.reshape(weight.shape)


def mean_weight(weight: Tensor, grid: Grid) -> Tensor:
    """Return the mean over rows (K,) of each weight's magnitude as a share of its group's largest."""
    total = weight.new_zeros(weight.shape[1])
    for rows in weight.split(max(1, _NUMBERS_AT_A_TIME // weight.shape[1])):
        groups = rows.view(len(rows), -1, grid.width(rows.shape[1])).abs()
        total += (groups / (groups.amax(-1, keepdim=True) + 1e-6)).sum(0).flatten()
    return total / len(weight)
