"""Loads models into the torch decoder, in fp32: the laboratory's reference, and the oracle of the kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from forerun.lab.torch.decoder import Decoder
from forerun.model.config import ModelConfig
from forerun.model.loader import read_config, stored_weights
from forerun.system import device as machine
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.rtn import Scheme, quantize_weight

if TYPE_CHECKING:
    from forerun.llm import LLM
    from forerun.weights.checkpoint import Checkpoint
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


def load_model(
    checkpoint: Checkpoint,
    *,
    device: str = "cpu",
    quant: Scheme = "none",
    max_len: int | None = None,
) -> Decoder:
    """Return a checkpoint's model, as `model.loader.load_model` reads it. Raises LoadError."""
    config, arch = read_config(checkpoint)
    config = config.within(max_len)
    weights = stored_weights(checkpoint, arch, config)
    return load(config, weights, device=device, quant=quant)


def exact_model(llm: LLM, quant: Scheme = "none") -> Decoder:
    """Return the model of an engine's file once more, in fp32 and on as many threads."""
    set_threads(llm.model.num_threads)
    return load_model(open_checkpoint(llm.path), quant=quant, max_len=llm.max_len)


def load(
    config: ModelConfig,
    weights: Iterable[tuple[str, StoredTensor]],
    *,
    device: str = "cpu",
    quant: Scheme = "none",
) -> Decoder:
    """Return the decoder of stored weights, by the names of `weight_shapes`; it has torch's threads."""
    values = {
        name: torch.from_numpy(quantize_weight(name, stored, quant).dequantize()).to(device)
        for name, stored in weights
    }
    return Decoder(config, values)
