"""From stored weights to a decoder on the device, and to one without weights for planning."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from forerun.core.errors import LoadError
from forerun.gpu.decoder import GpuDecoder
from forerun.model.backends.base import BlankWeight
from forerun.model.config import ModelConfig
from forerun.model.packing import fill, fill_blank
from forerun.weights.rtn import Scheme
from forerun.weights.stored import StoredTensor


def load(
    config: ModelConfig,
    weights: Iterable[tuple[str, StoredTensor]],
    *,
    device: str = "cuda",
    quant: Scheme = "none",
    head_bits: int | None = None,
) -> GpuDecoder:
    """Return the decoder of these weights; see `model.backends.base.Backend.load`.

    Raises LoadError for a format that is not read, or where the device has no memory for them.
    """
    decoder = GpuDecoder(config, device)
    try:
        fill(decoder, weights, quant=quant, head_bits=head_bits)
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"{device} has no memory for the weights (forerun plan says how much they need); use --device cpu"
        ) from error
    decoder.finish()
    return decoder


def blank(
    config: ModelConfig, weights: Iterable[BlankWeight], *, head_bits: int | None = None
) -> GpuDecoder:
    """Return the decoder on torch's device `meta`, whose tensors have sizes but no memory."""
    decoder = GpuDecoder(config, "meta")
    fill_blank(decoder, weights, head_bits)
    return decoder
