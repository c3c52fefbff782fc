"""Networks that draft for a model on a device: one file a network, and what they share (`base.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.networks.base import GpuNetwork
from forerun.gpu.networks.block import GpuBlock
from forerun.gpu.networks.eagle import GpuEagle
from forerun.gpu.networks.medusa import GpuMedusa
from forerun.gpu.networks.recurrent import GpuRecurrent

KINDS: Mapping[str, Callable[..., GpuNetwork]] = {
    "medusa": GpuMedusa,
    "recurrent": GpuRecurrent,
    "eagle3": GpuEagle,
    "dflash": GpuBlock,
}


def new(kind: str, target: GpuDecoder, *shape: object) -> GpuNetwork:
    """Make a network of a kind and shape, to be given its weights."""
    return KINDS[kind](target, *shape)
