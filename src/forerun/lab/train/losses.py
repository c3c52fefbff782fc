"""Losses of a draft distribution q against the target's p, through the rows of a head.

Vocabulary is where the memory goes: logits are never kept. A block of rows is multiplied by the head, its loss and the
gradients of its inputs, and of the head if that is trained, are found at once, and only those stay (as in fused linear
cross-entropy).

p is over the draft vocabulary and sums to less than one: what the target gives to other tokens. KL then weighs a row
by its sum, so rows that the draft vocabulary cannot say are learned from little. alpha = sum min(p, q): of the guesses
for sampled requests at least alpha / (2 - alpha) are right. Of logits z with q = softmax(z):

    kl         -sum p log q          d/dz = q sum p - p
    ce         -log q[best]          the same with p one at the target's likeliest token, if the draft vocabulary has it
    lk         w kl + (1 - w)(1 - alpha),  w = exp(-eta alpha) without a gradient    (LK-hybrid, arXiv 2602.23881)
               d alpha/dz = q (b - sum q b),  b = 1 where q < p

N rows, D width, V' draft vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Loss = Literal["kl", "lk", "ce"]
BLOCK, DEVICE_BLOCK = 64, 1024
"""Rows whose logits are there at once: of 4k tokens they fit a core's second-level cache; on another device."""
ETA = 3.0


def through_head(out: Tensor, head: Tensor, p: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the summed loss of rows `out` (N, D) with logits by `head` (V', D), and each row's alpha (N,).

    The product is computed in the type of `head`. Rows of `p` (N, V') are the target's distribution.
    """
    loss_and_alpha: tuple[Tensor, Tensor] = _ThroughHead.apply(out, head, p, loss)
    return loss_and_alpha


class _ThroughHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, head: Tensor, p: Tensor, loss: Loss
    ) -> tuple[Tensor, Tensor]:
        gradient, alphas = torch.empty_like(out, dtype=torch.float32), []
        is_trained = ctx.needs_input_grad[1]
        of_head = torch.zeros_like(head, dtype=torch.float32) if is_trained else None
        total = out.new_zeros((), dtype=torch.float32)
        columns = head.T
        size = BLOCK if out.device.type == "cpu" else DEVICE_BLOCK
        for start in range(0, len(out), size):
            rows = slice(start, start + size)
            block = out[rows].to(head.dtype)
            logits = (block @ columns).float()
            value, alpha, slope = _of_logits(logits, p[rows].float(), loss)
            total += value
            alphas.append(alpha)
            slope = slope.to(head.dtype)
            gradient[rows] = (slope @ head).float()
            if of_head is not None:
                of_head += slope.T @ block
        ctx.save_for_backward(gradient, of_head)
        alpha = torch.cat(alphas) if alphas else total.new_zeros(0)
        ctx.mark_non_differentiable(alpha)
        return total, alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        gradient, of_head = ctx.saved_tensors
        return gradient * of_total, None if of_head is None else of_head * of_total, None, None


def _of_logits(logits: Tensor, p: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss, alpha (n,) and the gradient of the logits (n, V'), of n rows."""
    log_q = logits.log_softmax(-1)
    q = log_q.exp()
    alpha = torch.minimum(p, q).sum(-1, keepdim=True)
    if loss == "ce":
        p = _only_best(p)
    slope = torch.addcmul(-p, q, p.sum(-1, keepdim=True))
    value = -(p * log_q).sum(-1, keepdim=True)
    if loss == "lk":
        weight = torch.exp(-ETA * alpha)
        below = torch.where(q < p, q, 0.0)
        rise = below - q * below.sum(-1, keepdim=True)
        slope = weight * slope - (1 - weight) * rise
        value = weight * value + (1 - weight) * (1 - alpha)
    return value.sum(), alpha[:, 0], slope


def _only_best(p: Tensor) -> Tensor:
    """One at each row's likeliest token, nothing where more than that is left to other tokens."""
    best, at = p.max(-1, keepdim=True)
    is_best = best > 1 - p.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter_(-1, at, is_best.to(p.dtype))
