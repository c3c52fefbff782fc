"""Small decoders that networks that draft are made of: on the target's device, or on the native kernels.

A linear map is one without layers, whose head it is: it keeps the row law, and is rounded and packed as heads are.

R rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.errors import LoadError
from forerun.model.backends import native, triton
from forerun.model.config import ModelConfig
from forerun.model.model import Model
from forerun.weights.rtn import Scheme, requantize
from forerun.weights.stored import StoredTensor, stored_floats

_BITS: Mapping[Scheme, int] = {"int8": 8, "int4": 4}


def load_draft_decoder(
    target: Model,
    config: ModelConfig,
    weights: Iterable[tuple[str, StoredTensor]],
    quant: Scheme = "none",
) -> Model:
    """Load a decoder on the target's device if its kernels compute it, else on the CPU. Raises LoadError.

    On the CPU it has the target's threads if that runs there. Without a weight `embed` its rows are given as vectors:
    it has no vocabulary.
    """
    config, named = _with_embedding(config, weights)
    device = triton.device_of(target)
    if device is not None and triton.not_built(config) is None:
        return triton.load(config, named, device=device, quant=quant)
    if reason := native.unsupported(config):
        raise LoadError(f"what drafts cannot run on the native kernels: {reason}")
    return native.load(config, named, shares_with=target, quant=quant)


def load_linear_map(target: Model, stored: StoredTensor, quant: Scheme = "none") -> Model:
    """Load a linear map (out, in) as the head of a decoder without layers: `head` maps (R, in) to (R, out)."""
    num_out, num_in = stored.shape
    if quant in _BITS and num_in % 32 == 0:
        stored = requantize(stored, _BITS[quant])
    config = _map_shape(target.config, num_out, num_in)
    return load_draft_decoder(target, config, [("embed", stored), ("norm", ones("norm", num_in))])


def _map_shape(config: ModelConfig, vocab_size: int, width: int) -> ModelConfig:
    """Return the shape of a head alone, whose logits are as they are."""
    return ModelConfig(
        family=config.family,
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=width,
        num_layers=0,
        num_heads=1,
        num_kv_heads=1,
        head_dim=config.head_dim,
        max_position=config.max_position,
        tied_head=True,
    )


def ones(name: str, size: int) -> StoredTensor:
    """Return a norm's weight that changes nothing."""
    return stored_floats(name, np.ones(size, np.float32))


def rms(weight: Floats, eps: float, x: Floats) -> Floats:
    """Divide rows (R, D) by their root mean square and multiply by a weight (D,)."""
    scale: Floats = 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps))
    return x * scale * weight


def _with_embedding(
    config: ModelConfig, weights: Iterable[tuple[str, StoredTensor]]
) -> tuple[ModelConfig, list[tuple[str, StoredTensor]]]:
    named = list(weights)
    if any(name == "embed" for name, _ in named):
        return config, named
    shape = replace(config, vocab_size=1, tied_head=True)
    return shape, [
        ("embed", stored_floats("embed", np.zeros((1, config.hidden_size), np.float32))),
        *named,
    ]
