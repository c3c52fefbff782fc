"""Muon for matrices, AdamW for the rest, or AdamW for all; and how the rate goes.

Muon (Jordan et al., 2024) steps by the momentum with all its singular values made nearly one, by five rounds of a
Newton-Schulz iteration in bf16. Here a matrix's step is also as large as the matrix was at first (rms times the root of
its width), so the same rate fits maps of large and of small vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimizerName = Literal["muon", "adamw"]
MOMENTUM = 0.95
BETAS = (0.9, 0.95)
ROUNDS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
CLIP = 1.0
"""Norm of the gradient, at most."""
LEAST = 0.03
"""Of the rate, at the end."""


def rate(done: float, warm_up: float, decay: float) -> float:
    """Of the full rate when a share `done` of the run is over: up, level, and down in a line over the last `decay`."""
    up = min(1.0, (done + 1e-9) / warm_up) if warm_up else 1.0
    down = max(LEAST, (1 - done) / decay) if decay and done > 1 - decay else 1.0
    return min(up, down)


class Optimizer:
    """Steps the weights of a network."""

    def __init__(self, net: nn.Module, name: OptimizerName, lr: float, vector_lr: float) -> None:
        """`lr` is that of matrices, `vector_lr` AdamW's of norms and biases beside Muon."""
        weights = list(net.parameters())
        self.all = weights
        self.lr = lr if name == "muon" else 0.0
        self.matrices = [w for w in weights if w.ndim == 2] if name == "muon" else []
        ids = {id(w) for w in self.matrices}
        others = [w for w in weights if id(w) not in ids]
        self.adam_lr = vector_lr if name == "muon" else lr
        self.adam = torch.optim.AdamW(others, self.adam_lr, BETAS, weight_decay=0.0)
        self.momenta = [torch.zeros_like(w) for w in self.matrices]
        self.sizes = [_size(w) for w in self.matrices]

    @torch.no_grad()
    def step(self, share: float) -> float:
        """One step with that share of the rates; the norm of the gradient before it was clipped. Forgets gradients."""
        norm = float(nn.utils.clip_grad_norm_(self.all, CLIP))
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * share
        self.adam.step()
        for weight, momentum, size in zip(self.matrices, self.momenta, self.sizes, strict=True):
            assert weight.grad is not None
            momentum.lerp_(weight.grad, 1 - MOMENTUM)
            update = orthogonal(weight.grad.lerp(momentum, MOMENTUM))
            weight.add_(update, alpha=-self.lr * share * size)
        for weight in self.all:
            weight.grad = None
        return norm

    def state(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"adam": self.adam.state_dict(), "momenta": self.momenta, "sizes": self.sizes}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.adam.load_state_dict(state["adam"])
        self.momenta = [tensor.clone() for tensor in state["momenta"]]
        self.sizes = list(state["sizes"])


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix of the same singular vectors whose singular values are near one, times sqrt(max(1, rows / columns))."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
    return (x.T if tall else x).float() * scale


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _size(weight: Tensor) -> float:
    """1 for weights of variance 1 / width; for weights that are zero too."""
    size = float(weight.detach().square().mean().sqrt()) * weight.shape[1] ** 0.5
    return size or 1.0
