"""Muon for matrices, AdamW for vectors, embeddings and heads, or AdamW for all; and how the rate goes.

Muon (Jordan et al., 2024) steps by the momentum with all its singular values made nearly one. Here a matrix's step is
also as large as the matrix was at first (rms times the root of its width), so the same rate fits maps of large and of
small vectors. The four gates of an LSTM cell are stepped as four matrices, which costs half as much as one of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forerun.lab.torch.networks.mlp_speculator import GateLinear, OwnHead

OptimizerName = Literal["muon", "adamw"]
BETAS = (0.9, 0.95)
CLIP = 1.0
"""Norm of the gradient, at most."""
LEAST = 0.03
"""Of the rate, at the end."""


def rate(done: float, warm_up: float, decay: float) -> float:
    """Return the share of the full rate when a share `done` of the run is over: up, level, and down over `decay`."""
    up = min(1.0, (done + 1e-9) / warm_up) if warm_up else 1.0
    down = max(LEAST, (1 - done) / decay) if decay and done > 1 - decay else 1.0
    return min(up, down)


class Optimizer:
    """Steps the weights of a network."""

    def __init__(self, net: nn.Module, name: OptimizerName, lr: float, vector_lr: float) -> None:
        """`lr` is that of matrices, `vector_lr` AdamW's of norms, biases and rows of tokens beside Muon."""
        self.all = [weight for weight in net.parameters() if weight.requires_grad]
        is_muon = name == "muon"
        tables = {id(m.weight) for m in net.modules() if isinstance(m, nn.Embedding | OwnHead)}
        matrices = [w for w in self.all if is_muon and w.ndim == 2 and id(w) not in tables]
        stepped = {id(w) for w in matrices}
        others = [w for w in self.all if id(w) not in stepped]
        adam = torch.optim.AdamW(others, vector_lr if is_muon else lr, BETAS, weight_decay=0.0)
        self.parts: list[torch.optim.Optimizer] = [adam]
        num_gates = {id(m.weight): m.num_gates for m in net.modules() if isinstance(m, GateLinear)}
        self._blocks = [(w, _blocks(w, num_gates.get(id(w), 1))) for w in matrices]
        if is_muon:
            groups = [{"params": blocks, "lr": lr * _size(w)} for w, blocks in self._blocks]
            self.parts.append(torch.optim.Muon(groups, weight_decay=0.0))
        for group in (group for part in self.parts for group in part.param_groups):
            group["initial_lr"] = group["lr"]

    def step(self, share: float) -> float:
        """Step with that share of the rates and forget gradients; the norm of the gradient before it was clipped."""
        norm = float(nn.utils.clip_grad_norm_(self.all, CLIP))
        for weight, blocks in self._blocks:
            assert weight.grad is not None
            for block, gradient in zip(blocks, weight.grad.chunk(len(blocks)), strict=True):
                block.grad = gradient
            weight.grad = None
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["initial_lr"] * share
            part.step()
            part.zero_grad()
        return norm

    def state(self) -> list[dict[str, Any]]:
        """Return what a resumed run needs."""
        return [part.state_dict() for part in self.parts]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Go on from `state`."""
        for part, each in zip(self.parts, state, strict=True):
            part.load_state_dict(each)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether no weight is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _blocks(weight: Tensor, num: int) -> list[nn.Parameter]:
    """Parameters that are the parts of a matrix, one below the other."""
    return [nn.Parameter(part) for part in weight.detach().chunk(num)]


def _size(weight: Tensor) -> float:
    """1 for weights of variance 1 / width; for weights that are zero too."""
    size = float(weight.detach().square().mean().sqrt()) * weight.shape[1] ** 0.5
    return size or 1.0
