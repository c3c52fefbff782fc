"""FlattenQuant: inputs with one scale for a whole tensor, outliers in several columns. arXiv 2402.17985.

What the abstract says: channels are smoothed, large ones are spread over repeated weight channels, and both operands
of a linear layer are integers with one scale (of weights: one an output), fixed by calibration. How the threshold is
chosen and how channels are split is reconstructed. Where inputs leave any range that was calibrated, a scale of the
row's own takes its place: still one integer sum. Such rows are transformed by Hadamard's matrix, which spreads large
inputs over their neighbours, in rows and in weights (QuaRot, arXiv 2404.00456); nothing is left to flatten then.
N rows (outputs), K columns (inputs), S sampled rows of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from forerun.lab.quantize.awq import Inputs
from forerun.lab.quantize.gptq import Feedback, compensated
from forerun.lab.torch import reference as ops
from forerun.weights.codes import Codes
from forerun.weights.flat import FLAT_CODES, HADAMARD_SIZE, FlatRows, hadamard

Kind = Literal["tensor", "row"]
KINDS: tuple[Kind, ...] = ("tensor", "row")
"""Whose scale inputs are rounded by: calibration's, of the whole tensor, as published; each row's own."""
ALPHAS = (0.0, 0.3, 0.5, 0.7, 0.85)
"""How much of a large channel is handed to its weights, in SmoothQuant's words; 0: nothing."""
_SHRINK, _THRESHOLDS = 0.9, 32
_HEADROOM = 1.5
"""Columns must hold the largest input that was seen, times this."""
_CLIPS = tuple(1 - 0.06 * i for i in range(8))
_ROWS_AT_A_TIME = 256
_LEAST = 1e-6


def rounded(rows: FlatRows, x: Tensor) -> Tensor:
    """Round inputs x (..., K) to flattened codes and back, in the same numbers as the kernels."""
    if rows.is_by_row:
        inverse, uses_hadamard = torch.from_numpy(rows.inverse), rows.uses_hadamard
        codes, scales = ops.flatten_by_row(x, inverse, uses_hadamard=uses_hadamard)
        near = codes * scales
        near = hadamard(near) / HADAMARD_SIZE if uses_hadamard else near
        return near * torch.from_numpy(rows.steps)
    most = torch.from_numpy(rows.pieces) * float(rows.limit)
    codes = torch.round(x * torch.from_numpy(rows.inverse))
    return torch.minimum(torch.maximum(codes, -most), most) * torch.from_numpy(rows.steps)


def search_rows(
    inputs: Inputs, weight: Tensor, *, bits: int, max_widening: float, kinds: Sequence[Kind] = KINDS
) -> FlatRows:
    """Choose how to flatten the inputs of the matrices `weight` (N, K), to at most (1 + max_widening) K columns.

    Of each smoothing the threshold that rounds the inputs best, weighted by their columns, or a scale of each row's
    own; then what gives the nearest product, with weights rounded to `bits` as well. Sampled rows that ranges were not
    taken from show what other texts lose.
    """
    weight_max = weight.abs().amax(0).clamp(min=_LEAST)
    largest = inputs.largest.clamp(min=_LEAST)
    exact = inputs.sample @ weight.T
    # Each row counts alike: a few with huge inputs would hide what becomes of all others.
    share = 1 / exact.square().sum(1).clamp(min=1e-30)
    best, least = None, torch.inf
    for alpha in ALPHAS:
        smooth = largest**alpha / weight_max ** (1 - alpha) if alpha else torch.ones_like(largest)
        smooth = smooth / smooth.log().mean().exp()
        for kind in kinds:
            rows = FlatRows.by_row(smooth.numpy(), uses_hadamard=True)
            if kind == "tensor":
                rows = _threshold(inputs, smooth, weight, share, max_widening)
            error = float(_errors(weight, exact, inputs.sample, rows, bits) @ share)
            if error < least:
                best, least = rows, error
    assert best is not None
    return best


def _errors(weight: Tensor, exact: Tensor, x: Tensor, rows: FlatRows, bits: int) -> Tensor:
    """Return how far the product of each row of inputs (S,) is from the exact one (S, N)."""
    seen, errors = rounded(rows, x), torch.zeros(len(x))
    parts = zip(weight.split(_ROWS_AT_A_TIME), exact.split(_ROWS_AT_A_TIME, 1), strict=True)
    for part, goal in parts:
        near = rows.from_codes(_nearest(rows.to_codes(part), bits))
        errors += (seen @ near.T - goal).square().sum(1)
    return errors


def _threshold(
    inputs: Inputs, smooth: Tensor, weight: Tensor, share: Tensor, max_widening: float
) -> FlatRows:
    """Choose the threshold for smoothed inputs x / smooth: the largest value of one column."""
    limit = FLAT_CODES[8][1]
    most = max(int(len(smooth) * (1 + max_widening)) // 32 * 32, len(smooth))
    salience = weight.square().sum(0)
    largest = (_HEADROOM * inputs.largest / smooth).clamp(min=_LEAST)
    best, least = None, torch.inf
    for i in range(_THRESHOLDS):
        threshold = float(largest.max()) * _SHRINK**i
        pieces = torch.ceil(largest / threshold - 1e-4).clamp(min=1)
        if float(pieces.sum()) > most:
            break
        steps = smooth * (threshold / limit)
        rows = FlatRows(steps.numpy(), pieces.to(torch.int32).numpy(), limit)
        difference = rounded(rows, inputs.sample) - inputs.sample
        error = float(share @ difference.square() @ salience)
        if error < least:
            best, least = rows, error
    assert best is not None
    return best


def round_weights(
    weights: Sequence[Tensor], inputs: Inputs, rows: FlatRows, bits: int
) -> list[Codes]:
    """Round matrices (N_i, K) to codes for flattened inputs.

    Of 4 bits each output's range is the best of eight, and columns are rounded one after the other: what the later ones
    can make up for they do (GPTQ, Frantar et al., arXiv 2210.17323).
    """
    noise = rounded(rows, inputs.sample) - inputs.sample
    gram = _in_steps(rows, _in_steps(rows, inputs.gram).T)
    gram.diagonal().add_(_in_steps(rows, noise).square().mean(0))
    weight = rows.to_codes(torch.cat(list(weights)))
    scales = torch.cat([_scales(part, gram, bits) for part in weight.split(_ROWS_AT_A_TIME)])
    if bits == 4:
        zeros, feedback = torch.zeros_like(scales), Feedback.of(gram, inputs.num_tokens)
        codes = compensated(weight, feedback, scales, zeros, FLAT_CODES[bits])
    else:
        codes = _codes(weight, scales, bits)
    sizes = [len(each) for each in weights]
    return [
        Codes(part.to(torch.int8).numpy(), scale.numpy(), flat=rows)
        for part, scale in zip(codes.split(sizes), scales.split(sizes), strict=True)
    ]


def product_error(weights: Sequence[Tensor], parts: Sequence[Codes], inputs: Inputs) -> float:
    """Return the mean square error of the products on the sampled rows, relative to their size."""
    assert parts[0].flat is not None
    seen, error, size = rounded(parts[0].flat, inputs.sample), 0.0, 0.0
    for weight, part in zip(weights, parts, strict=True):
        exact = inputs.sample @ weight.T
        error += float((seen @ torch.from_numpy(part.values()).T - exact).square().sum())
        size += float(exact.square().sum())
    return error / max(size, 1e-30)


def _in_steps(rows: FlatRows, x: Tensor) -> Tensor:
    """Return inputs x (..., K) as their codes see them: in steps, transformed or not."""
    scaled = x / torch.from_numpy(rows.steps)
    return hadamard(scaled) if rows.uses_hadamard else scaled


def _codes(weight: Tensor, scales: Tensor, bits: int) -> Tensor:
    return torch.round(weight / scales).clamp(*FLAT_CODES[bits])


def _nearest(weight: Tensor, bits: int) -> Tensor:
    scales = _full_range(weight, bits)
    return _codes(weight, scales, bits) * scales


def _full_range(weight: Tensor, bits: int) -> Tensor:
    """Return the scale of each output (N, 1) whose codes hold it; where they go further below 0, with its sign."""
    low, high = FLAT_CODES[bits]
    largest = weight.gather(1, weight.abs().argmax(1, keepdim=True))
    largest = largest if -low > high else -largest.abs()
    return torch.where(largest.abs() < 1e-12, 1e-12, largest) / low


def _scales(weight: Tensor, gram: Tensor, bits: int) -> Tensor:
    """Return the scale of each output (N, 1): with 8 bits of its full range, with fewer of the best clipped one."""
    full_range = _full_range(weight, bits)
    if bits == 8:
        return full_range
    best, least = full_range, torch.full_like(full_range, torch.inf)
    for clip in _CLIPS:
        difference = _codes(weight, full_range * clip, bits) * (full_range * clip) - weight
        error = ((difference @ gram) * difference).sum(1, keepdim=True)
        is_better = error < least
        best = torch.where(is_better, full_range * clip, best)
        least = torch.where(is_better, error, least)
    return best
