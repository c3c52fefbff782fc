"""What passes between host and device: numbers there without a wait, numbers back with one.

R rows of a pass, D hidden width, n layers whose states are asked for.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from forerun.core.arrays import Floats
from forerun.model.model import Hidden


def to_device(numbers: np.ndarray, device: torch.device | str) -> Tensor:
    """Copy numbers to a device behind what it has to do; they may change as soon as this returns.

    Pageable memory is staged before the call of CUDA returns, so nothing has to be waited for.
    """
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(device, non_blocking=True)


def to_host(numbers: Tensor) -> np.ndarray:
    """Wait until the device has computed numbers, and copy them. Nothing else of a step waits."""
    found: np.ndarray = numbers.cpu().numpy()
    return found


class DeviceHidden(Hidden):
    """States (1 + n, R, D) on a device, at the end and behind layers; they come to the host when first read.

    They are a copy of their own, which no later pass writes to.
    """

    states: Tensor

    def __init__(self, states: Tensor) -> None:
        object.__setattr__(self, "states", states)

    @cached_property
    def _on_host(self) -> np.ndarray:
        return to_host(self.states)

    @property
    def last(self) -> Floats:
        """The state (R, D) that the head reads."""
        return self._on_host[0]

    @property
    def aux(self) -> tuple[Floats, ...]:
        """Outputs (R, D) of layers."""
        return (*self._on_host[1:],)
