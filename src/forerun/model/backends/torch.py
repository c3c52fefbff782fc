"""The decoder on torch, in fp32: it runs every model on every device, and is the oracle of the native one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.model.backends.base import BlankWeight, Progress
from forerun.model.config import ModelConfig, weight_shapes
from forerun.model.decoder import Decoder
from forerun.model.model import Model
from forerun.model.packed import PackedFile
from forerun.weights.rtn import Scheme, quantize_weight

if TYPE_CHECKING:
    from forerun.weights.stored import StoredTensor

PRIORITY = 0


def unsupported(config: ModelConfig, device: torch.device) -> str | None:
    """Return None: torch runs every model."""
    return None


def load(
    config: ModelConfig,
    weights: Iterable[tuple[str, StoredTensor]],
    *,
    device: torch.device,
    shares_with: Model | None = None,
    quant: Scheme = "none",
    head_bits: int | None = None,
    packed: PackedFile | None = None,
    progress: Progress | None = None,
) -> Decoder:
    """Return the decoder with fp32 weights on `device`. Raises ConfigError for `head_bits`."""
    if head_bits is not None:
        raise ConfigError(
            f"a head of {head_bits} bits needs the native kernels: leave it out, or use backend native on a CPU"
        )
    total, loaded = len(weight_shapes(config)), 0
    values: dict[str, Tensor] = {}
    for name, stored in weights:
        values[name] = quantize_weight(name, stored, quant).dequantize().to(device)
        loaded += not name.endswith(".bias")
        if progress is not None:
            progress(loaded, total)
    return Decoder(config, values)


def blank(
    config: ModelConfig,
    weights: Iterable[BlankWeight],
    *,
    device: torch.device,
    shares_with: Model | None = None,
    head_bits: int | None = None,
) -> Decoder:
    """Return the decoder on torch's device `meta`, whose tensors have sizes but no memory."""
    values: dict[str, Tensor] = {}
    for name, shape, _, has_bias in weights:
        values[name] = torch.empty(shape, device="meta")
        if has_bias:
            values[f"{name}.bias"] = torch.empty(shape[:1], device="meta")
    return Decoder(config, values)
