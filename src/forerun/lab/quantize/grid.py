"""Grids of integer codes: what a group of weights may become. weight = scale * (code - zero).

N rows (outputs), K columns (inputs), G groups of g columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.weights.codes import Codes

BITS = (3, 4, 8)
GROUPS = (128, 64, 32)
_LEAST_RANGE = 1e-5


@dataclass(frozen=True, slots=True)
class Grid:
    """Codes of `bits` with a scale for each `group` columns of a row, or for the row if it is None.

    3 and 4 bits have zero points; 8 bits, which hardly gain by them, have none: their zero is the middle.
    """

    bits: int
    group: int | None

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point is the middle."""
        return self.bits == 8

    def width(self, num_in: int) -> int:
        """Return the columns that share a scale."""
        return self.group or num_in

    def ranges(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scales and zero points (N, G) that span each group of a matrix, as AWQ chooses them."""
        groups = weight.view(len(weight), -1, self.width(weight.shape[1]))
        if self.is_symmetric:
            middle = (self.top + 1) // 2
            scales = _as_fp16(groups.abs().amax(-1).clamp(min=_LEAST_RANGE) / (middle - 1))
            return scales, torch.full_like(scales, middle)
        low, high = groups.aminmax(dim=-1)
        scales = _as_fp16((high - low).clamp(min=_LEAST_RANGE) / self.top)
        return scales, (-torch.round(low / scales)).clamp(0, self.top)

    @property
    def top(self) -> int:
        """The largest code, 2^bits - 1."""
        return (1 << self.bits) - 1

    def round(self, weight: Tensor) -> Codes:
        """Return the nearest codes of a matrix (N, K), fp32."""
        scales, zeros = self.ranges(weight)
        return coded(self._codes(weight, scales, zeros).view(weight.shape), scales, zeros)

    def nearest(self, weight: Tensor) -> Tensor:
        """Return the values (N, K) of the nearest codes."""
        scales, zeros = self.ranges(weight)
        codes = self._codes(weight, scales, zeros)
        return codes.sub_(zeros[..., None]).mul_(scales[..., None]).view(weight.shape)

    def _codes(self, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        """Return whole numbers (N, G, g), fp32."""
        groups = weight.view(*scales.shape, -1)
        codes = torch.round(groups / scales[..., None]) + zeros[..., None]
        return codes.clamp_(0, self.top)


def coded(codes: Tensor, scales: Tensor, zeros: Tensor) -> Codes:
    """Return codes (N, K) from 0 to 255 with scales and zero points (N, G), fp32."""
    unsigned = codes.to(torch.uint8).contiguous().cpu()
    return Codes(unsigned.numpy(), scales.cpu().numpy(), zeros=zeros.cpu().numpy())


def grid_for(bits: int, group: str | None, widths: set[int]) -> Grid:
    """Return the grid a user asks for. Without a group: 128, or what divides every width. Raises ConfigError."""
    if bits not in BITS:
        raise ConfigError(f"--bits is {bits}, but must be one of {', '.join(map(str, BITS))}")
    if group == "channel":
        return Grid(bits, None)
    fitting = [size for size in GROUPS if all(width % size == 0 for width in widths)]
    if group is None:
        if not fitting:
            raise ConfigError(f"no group divides widths {sorted(widths)}: give --group channel")
        return Grid(bits, fitting[0])
    if group not in map(str, GROUPS):
        raise ConfigError(f"--group is {group!r}, but must be 32, 64, 128 or channel")
    if int(group) not in fitting:
        others = ", ".join([*map(str, fitting), "channel"])
        raise ConfigError(
            f"groups of {group} do not divide all widths of this model ({', '.join(map(str, sorted(widths)))}): "
            f"give --group {others}"
        )
    return Grid(bits, int(group))


def _as_fp16(scales: Tensor) -> Tensor:
    return scales.to(torch.float16).to(torch.float32)
