"""The decoder on torch, in fp32: it runs every model on every device, and is the oracle of the native one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.lab.torch.decoder import Decoder
from forerun.model.backends.base import BlankWeight
from forerun.model.config import ModelConfig
from forerun.model.model import Model
from forerun.system import device as machine
from forerun.weights.rtn import Scheme, quantize_weight

if TYPE_CHECKING:
    from forerun.weights.stored import StoredTensor


def missing_device(name: str) -> str | None:
    """Return why torch cannot compute on a device; None if it can."""
    index = int(name.partition(":")[2] or 0)
    if name.startswith("cuda") and index >= torch.cuda.device_count():
        return f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices; use device=cpu"
    return None


def set_threads(num_threads: int | None = None) -> int:
    """Let torch compute with so many threads, by default one a usable core; return how many. Raises ConfigError."""
    count = machine.num_threads(num_threads)
    torch.set_num_threads(count)
    return count


def load(
    config: ModelConfig,
    weights: Iterable[tuple[str, StoredTensor]],
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    shares_with: Model | None = None,
    quant: Scheme = "none",
    head_bits: int | None = None,
) -> Decoder:
    """Return the decoder with fp32 weights, on `device` or where the model is that it `shares_with`.

    Torch has one number of threads, for all that it computes.
    Raises ConfigError for `head_bits`.
    """
    if head_bits is not None:
        raise ConfigError(
            f"a head of {head_bits} bits needs the native kernels: leave it out, or use backend native on a CPU"
        )
    if isinstance(shares_with, Decoder):
        device = str(shares_with.device)
    else:
        set_threads(num_threads)
    values: dict[str, Tensor] = {}
    for name, stored in weights:
        values[name] = torch.from_numpy(quantize_weight(name, stored, quant).dequantize()).to(
            device
        )
    return Decoder(config, values)


def blank(
    config: ModelConfig,
    weights: Iterable[BlankWeight],
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    shares_with: Model | None = None,
    head_bits: int | None = None,
) -> Decoder:
    """Return the decoder on torch's device `meta`, whose tensors have sizes but no memory."""
    set_threads(num_threads)
    values: dict[str, Tensor] = {}
    for name, shape, _, has_bias in weights:
        values[name] = torch.empty(shape, device="meta")
        if has_bias:
            values[f"{name}.bias"] = torch.empty(shape[:1], device="meta")
    return Decoder(config, values)
