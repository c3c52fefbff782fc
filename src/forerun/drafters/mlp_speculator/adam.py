"""Adam for one tensor.

What `torch.optim` has does the same, and imports torch's compiler at its first step: 80 MB.

Source: Kingma and Ba, arXiv 1412.6980, algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-8


class Adam:
    """Means of the gradient and of its squares, with which a tensor of any shape is moved in place."""

    def __init__(self, betas: tuple[float, float]) -> None:
        self.betas = betas
        self._num_steps = 0
        self._mean = self._square = torch.zeros(())

    def step(self, tensor: Tensor, gradient: Tensor, rate: float) -> None:
        """Move the tensor against its gradient."""
        first, second = self.betas
        self._num_steps += 1
        self._mean = first * self._mean + (1 - first) * gradient
        self._square = second * self._square + (1 - second) * gradient.square()
        mean = self._mean / (1 - first**self._num_steps)
        square = self._square / (1 - second**self._num_steps)
        tensor -= rate * mean / (square.sqrt() + EPS)
