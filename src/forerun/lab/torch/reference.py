"""What every op of a decoder means, in plain torch: the oracle of faster kernels.

It knows nothing about models, sequences or caches: `decoder.py` composes these ops and
`visibility.py` lays out the keys. The row law (a row's result is the same bits whatever rows
are in the pass) rests on three habits:

1. Matrix products always have the same shape: TILE rows, and keys in blocks of KEY_BLOCK. A library
   chooses another summation order for another shape, but for one shape treats all rows alike (if
   widths are multiples of WIDTH_UNIT; otherwise it has special code for the last rows).
2. Sums over keys run block by block in ascending position. A block that no row sees adds exact zeros.
3. Activations are built from exp, erf, tanh and exact arithmetic. Fused ones (torch's own silu,
   gelu, sigmoid) compute the last few elements of a tensor with other code than the rest.

R = TILE rows, D width, H heads, G kv heads, E head dim, S cache rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.model.config import SWIGLU_ALPHA, SWIGLU_LIMIT, ExpertsConfig
from forerun.weights.flat import hadamard

TILE = 8
"""Rows of every pass; fewer are padded."""
KEY_BLOCK = 128
"""Keys of one step of attention, aligned to absolute positions."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x (R, in) by weight (out, in) and add bias (out,): (R, out)."""
    return functional.linear(x, weight, bias)


def flat_columns(pieces: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each column of a flattened row (K',) its input, and its number among the input's columns.

    The first columns of all K inputs, whose numbers are `pieces` (K,), then the others of each.
    """
    first = torch.arange(len(pieces), device=pieces.device)
    source = torch.cat((first, torch.repeat_interleave(first, pieces.long() - 1)))
    zeros, more = torch.zeros_like(first), (pieces.long() - 1).cumsum(0)
    seen = torch.cat((zeros[:1], more))
    rest = source[len(pieces) :]
    nth = torch.arange(len(rest), device=pieces.device) - seen[rest] + 1
    return source, torch.cat((zeros, nth))


def flatten(x: Tensor, inverse: Tensor, pieces: Tensor, limit: int) -> Tensor:
    """Return the codes (R, K') within -limit..limit of rows x (R, K), widened. FlattenQuant, arXiv 2402.17985.

    A column of an input has what is beyond the one before.
    """
    source, nth = flat_columns(pieces)
    codes = torch.round(x * inverse)[:, source]
    low = nth * limit
    inner = torch.minimum(torch.maximum(codes, -low), low)
    return torch.minimum(torch.maximum(codes, -low - limit), low + limit) - inner


def flatten_by_row(
    x: Tensor, inverse: Tensor, *, uses_hadamard: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the codes (R, K) of rows x (R, K), transformed or not, and each row's own scale (R, 1)."""
    scaled = hadamard(x * inverse) if uses_hadamard else x * inverse
    largest = scaled.abs().amax(1, keepdim=True)
    is_zero = largest < 1e-30
    codes = torch.round(scaled * torch.where(is_zero, 0.0, 127 / largest))
    return codes, torch.where(is_zero, 0.0, largest / 127)


def flat_linear(
    codes: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    of_rows: Tensor | None = None,
) -> Tensor:
    """Multiply codes (R, K') by those of weights (out, K') exactly, by scales (out,) and `of_rows` (R, 1): (R, out)."""
    out = (codes.double() @ weight.double().T).to(torch.float32) * scales
    out = out if of_rows is None else out * of_rows
    return out if bias is None else out + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide x (..., D) by its root mean square, times weight (D,). arXiv 1910.07467."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Shift and scale x (..., D) to mean 0 and variance 1, times weight (D,), plus bias (D,)."""
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (R, H, E) by the angles of cos and sin (R, 1, F). Su et al., arXiv 2104.09864.

    The rotate-half layout: feature j turns with feature j + F; those from 2F on stay.
    """
    half = cos.shape[-1]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)


def sigmoid(x: Tensor) -> Tensor:
    """Return the logistic function of x."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """Multiply x by its logistic function."""
    return x / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    """Multiply x by the normal distribution function of it."""
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of gelu."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x).square(),
}


def swiglu_oai(gate: Tensor, up: Tensor) -> Tensor:
    """Return gpt-oss's gated activation: both inputs are clamped, and one is added to `up`."""
    gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return (up + 1) * (gate / (1 + torch.exp(-SWIGLU_ALPHA * gate)))


def activated(activation: str, up: Tensor, gate: Tensor | None) -> Tensor:
    """Return what an MLP hands to its last matrix, (R, F) of up (R, F) and, if it is gated, of gate (R, F).

    Gated MLPs: Shazeer, arXiv 2002.05202.
    """
    if gate is None:
        return ACTIVATIONS[activation](up)
    if activation == "swiglu_oai":
        return swiglu_oai(gate, up)
    return ACTIVATIONS[activation](gate) * up


def beyond(gate: Tensor, deviations: float) -> Tensor:
    """Return by how much each of the gates (R, I) exceeds the row's mean and so many standard deviations, else 0."""
    mean = gate.mean(-1, keepdim=True)
    deviation = (gate - mean).square().mean(-1, keepdim=True).sqrt()
    return torch.clamp(gate - (mean + deviation * deviations), min=0)


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Return cap tanh(x / cap), or x without a cap. Bello et al., arXiv 1611.09940; Gemma 2."""
    return x if cap is None else cap * torch.tanh(x / cap)


def expert_shares(logits: Tensor, experts: ExpertsConfig, bias: Tensor | None = None) -> Tensor:
    """Return the weight of each expert's output (R, experts), 0 of those that a row did not choose.

    Of equal scores of `logits` (R, experts), with `bias` (experts,) added, the lowest expert is chosen first.
    """
    if experts.scoring == "sigmoid":
        scores, total = sigmoid(logits), None
    else:
        scores = torch.exp(logits - logits.amax(-1, keepdim=True))
        total = scores.sum(-1, keepdim=True)
    if bias is not None and total is not None:
        scores, total = scores / total, None
    choice = scores if bias is None else scores + bias
    if total is not None:
        choice = logits  # in the same order, and without ties by rounding
    if experts.num_groups > 1:
        choice = choice.masked_fill(_outside_groups(choice, experts), -math.inf)
    chosen = choice.sort(descending=True, stable=True).indices[:, : experts.num_active]
    active = scores * torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
    if experts.renormalized:
        total = active.sum(-1, keepdim=True) + experts.sum_offset
    shares = active if total is None else active / total
    return shares if experts.scale == 1 else shares * experts.scale


def _outside_groups(choice: Tensor, experts: ExpertsConfig) -> Tensor:
    """Return whether an expert (R, experts) is in none of the row's best groups."""
    groups = choice.unflatten(-1, (experts.num_groups, -1))
    best = groups.sort(descending=True).values[..., : experts.group_best].sum(-1)
    first = best.sort(descending=True, stable=True).indices[:, : experts.num_active_groups]
    is_outside = torch.ones_like(best, dtype=torch.bool).scatter_(1, first, False)
    return is_outside.repeat_interleave(groups.shape[-1], -1)


@dataclass(frozen=True, slots=True)
class KeyBlock:
    """KEY_BLOCK consecutive positions as the rows of a tile see them.

    `rows` are the cache rows that hold them: one slice for all, or (n, KEY_BLOCK) indices, a list
    for each of the first n rows of the tile. `hidden` (R, KEY_BLOCK) is true where a row must not
    look; None if all is visible.
    """

    rows: slice | Tensor
    hidden: Tensor | None


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Sequence[KeyBlock],
    scale: float,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Let query (R, H, E) attend to keys (G, S, E) and values (G, S, F): (R, H, F).

    Query head h reads kv head h // (H / G). Every row must see at least one key. Scores are `capped`; `sinks` (H,)
    are logits without a value, one a head.
    """
    num_rows, num_heads, _ = query.shape
    num_groups = keys.shape[0]
    # All queries that read one kv head form one matrix: (G, H / G, R, E).
    stacked = (query * scale).view(num_rows, num_groups, num_heads // num_groups, -1)
    stacked = stacked.permute(1, 2, 0, 3).contiguous()
    scores = [_scores(stacked, keys, block, cap) for block in blocks]
    top = torch.stack([block.amax(-1, keepdim=True) for block in scores]).amax(0)
    total = torch.zeros_like(top)
    mixed = stacked.new_zeros(*stacked.shape[:-1], values.shape[-1])
    if sinks is not None:
        sink = sinks.view(num_groups, -1, 1, 1).expand_as(top)
        top = torch.maximum(top, sink)
        total = torch.exp(sink - top)
    for score, block in zip(scores, blocks, strict=True):
        weights = torch.exp(score - top)
        total += weights.sum(-1, keepdim=True)
        mixed += _matmul_rows(weights, values, block.rows, transpose=False)
    return (mixed / total).permute(2, 0, 1, 3).reshape(num_rows, num_heads, -1)


def _scores(query: Tensor, keys: Tensor, block: KeyBlock, cap: float | None) -> Tensor:
    """Return the scores (G, H / G, R, KEY_BLOCK) of a query (G, H / G, R, E), -inf where hidden."""
    scores = capped(_matmul_rows(query, keys, block.rows, transpose=True), cap)
    return scores if block.hidden is None else scores.masked_fill_(block.hidden, -math.inf)


def _matmul_rows(x: Tensor, cached: Tensor, rows: slice | Tensor, *, transpose: bool) -> Tensor:
    """Multiply x (G, H / G, R, *) by some rows of `cached` (G, S, E), or by their transpose."""
    if isinstance(rows, slice):
        return _matmul(x, cached[:, rows], transpose)
    # Each tile row has its own keys. The product keeps the usual shape; one row of it is used.
    products = [_matmul(x, cached[:, index], transpose)[:, :, i] for i, index in enumerate(rows)]
    unused = [torch.zeros_like(products[0])] * (x.shape[2] - len(products))
    return torch.stack(products + unused, dim=2)


def _matmul(x: Tensor, picked: Tensor, transpose: bool) -> Tensor:
    matrix = picked.mT if transpose else picked
    return torch.bmm(x.flatten(1, 2), matrix).view(*x.shape[:3], -1)
