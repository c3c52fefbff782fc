"""From stored blocks to numbers: the ways of storing a tensor that GGUF files use, in torch.

A quantized row is a sequence of blocks, each with its scales and small integers packed into bytes; the
layouts are ggml's. The `gguf` package can do the same, an order of magnitude slower; it is the oracle of
the tests, which ask for equality to the bit.

n blocks of a chunk; sub-blocks of a block; the last axis holds the elements of a (sub-)block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Type = gguf.GGMLQuantizationType

_CHUNK_BLOCKS = 1 << 15
"""Blocks worked on at a time, so that what lies between stays in the cache and memory use stays flat."""


def dequantize(data: NDArray[np.uint8], dtype: Type, shape: tuple[int, ...]) -> Tensor:
    """The values, fp32, of that shape, in memory of their own; `dtype` is one of READABLE."""
    if dtype in _PLAIN:
        return torch.from_numpy(np.array(data)).view(_PLAIN[dtype]).float().reshape(shape)
    block_size, type_size = gguf.GGML_QUANT_SIZES[dtype]
    blocks = data.reshape(-1, type_size)
    values = torch.empty(math.prod(shape)).view(-1, block_size)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        # Copied, since torch takes no arrays that must not be written to.
        values[chunk] = _UNPACK[dtype](torch.from_numpy(np.array(blocks[chunk]))).flatten(1)
    return values.reshape(shape)


def _q4_0(blocks: Tensor) -> Tensor:
    scale, packed = blocks.split((2, 16), dim=1)
    return _half(scale) * (_nibbles(packed) - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    scale, low, packed = blocks.split((2, 2, 16), dim=1)
    return _half(scale) * _nibbles(packed) + _half(low)


def _q5_0(blocks: Tensor) -> Tensor:
    scale, fifth, packed = blocks.split((2, 4, 16), dim=1)
    bits = (fifth[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1  # (n, 4, 8)
    return _half(scale) * ((_nibbles(packed) | bits.flatten(1) << 4).to(torch.int8) - 16)


def _q8_0(blocks: Tensor) -> Tensor:
    scale, values = blocks.split((2, 32), dim=1)
    return _half(scale) * values.view(torch.int8)


def _q4_k(blocks: Tensor) -> Tensor:
    scale, low, scales, packed = blocks.split((2, 2, 12, 128), dim=1)
    values = _nibbles(packed.unflatten(1, (4, 32))).unflatten(2, (2, 32))  # (n, 4, 2, 32)
    return _scale_and_low(scale, low, scales, values.flatten(1, 2))


def _q5_k(blocks: Tensor) -> Tensor:
    scale, low, scales, fifth, packed = blocks.split((2, 2, 12, 32, 128), dim=1)
    values = _nibbles(packed.unflatten(1, (4, 32))).unflatten(2, (2, 32)).flatten(1, 2)
    bits = (fifth[:, None] >> torch.arange(8, dtype=torch.uint8)[:, None]) & 1  # (n, 8, 32)
    return _scale_and_low(scale, low, scales, values | bits << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    packed, high, scales, scale = blocks.split((128, 64, 16, 2), dim=1)
    # Two halves of 128 elements: 64 bytes of nibbles, and 32 bytes with two bits for each quarter.
    nibbles = _nibbles(packed.unflatten(1, (2, 64))).unflatten(2, (4, 32))  # (n, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    bits = (high.unflatten(1, (2, 1, 32)) >> shifts) & 3
    values = (nibbles | bits << 4).to(torch.int8) - 32
    return (_half(scale) * scales.view(torch.int8))[:, :, None] * values.reshape(-1, 16, 16)


def _half(scale: Tensor) -> Tensor:
    """Two bytes a block as one fp32 number, (n, 1)."""
    return scale.contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """The low halves of the bytes, then the high ones, uint8."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _scale_and_low(scale: Tensor, low: Tensor, scales: Tensor, values: Tensor) -> Tensor:
    """Eight sub-blocks (n, 8, 32) by a 6-bit scale and a 6-bit minimum each, packed in 12 bytes.

    The first four scales, then the first four minima, lie in the low 6 bits of 8 bytes; the others'
    low 4 bits in the last 4 bytes and their high 2 bits on top of those 8 bytes.
    """
    first, last = scales[:, :8], scales[:, 8:]
    high = first >> 6 << 4
    sub_scales = torch.cat((first[:, :4] & 63, last & 15 | high[:, :4]), dim=1)
    sub_lows = torch.cat((first[:, 4:] & 63, last >> 4 | high[:, 4:]), dim=1)
    return (_half(scale) * sub_scales)[:, :, None] * values - (_half(low) * sub_lows)[:, :, None]


_PLAIN: Mapping[Type, torch.dtype] = {
    Type.F32: torch.float32,
    Type.F16: torch.float16,
    Type.BF16: torch.bfloat16,
}
_UNPACK: Mapping[Type, Callable[[Tensor], Tensor]] = {
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q5_0: _q5_0,
    Type.Q8_0: _q8_0,
    Type.Q4_K: _q4_k,
    Type.Q5_K: _q5_k,
    Type.Q6_K: _q6_k,
}
READABLE = frozenset((*_PLAIN, *_UNPACK))
"""How a tensor may be stored, in GGUF's names."""
