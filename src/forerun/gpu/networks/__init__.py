"""Networks that draft beside a decoder on a device: one file a network, and what they share (`base.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.networks.base import Network
from forerun.gpu.networks.block import Block
from forerun.gpu.networks.eagle import Eagle
from forerun.gpu.networks.medusa import Medusa
from forerun.gpu.networks.recurrent import Recurrent

KINDS: Mapping[str, Callable[..., Network]] = {
    "medusa": Medusa,
    "recurrent": Recurrent,
    "eagle3": Eagle,
    "dflash": Block,
}


def new(kind: str, target: GpuDecoder, *shape: object) -> Network:
    """Make a network of a kind and shape, to be given its weights."""
    return KINDS[kind](target, *shape)
