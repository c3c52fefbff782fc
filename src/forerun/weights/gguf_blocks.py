"""Quantized matrices in GGUF's blocks: how codes, scales and minima lie in the bytes.

The layouts are those of ggml (ggml-common.h); the `gguf` package, which only gives values, is the
oracle in the tests, and rounds new blocks. N rows, K columns, B = K / block blocks a row.
"""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from forerun.weights.codes import Bytes, Codes, Floats, WeightFormat


def unpack(data: Bytes, format: WeightFormat) -> Codes:
    """Return the codes, scales and minima of rows of blocks (N, bytes a row)."""
    num_rows = len(data)
    blocks = data.reshape(num_rows, -1, format.block_nbytes)
    unpack_rows = _unpack_superblocks if format.block == 256 else _unpack_blocks
    codes, scales, offsets = unpack_rows(blocks, format)
    offsets = None if offsets is None else offsets.reshape(num_rows, -1)
    return Codes(
        codes.reshape(num_rows, -1),
        scales.reshape(num_rows, -1),
        mins=None if format.has_zero else offsets,
        zeros=-offsets if offsets is not None and format.has_zero else None,
    )


def quantize(values: Floats, format: WeightFormat) -> Bytes:
    """Round fp32 (N, K) to the nearest codes of each block: (N, bytes a row)."""
    blocks: Bytes = gguf.quantize(values, gguf.GGMLQuantizationType[format.name.upper()])
    return blocks


def _unpack_blocks(
    blocks: Bytes, format: WeightFormat
) -> tuple[NDArray[np.int8], Floats, Floats | None]:
    """Unpack blocks of 32, (N, B, bytes): scale f16, minimum f16 if any, fifth bits (32) if any, codes.

    In place of a minimum `q4_z` has minus its zero point.
    Low nibbles are codes 0 to 15, high ones 16 to 31. Without a minimum codes are stored plus
    2 ** (bits - 1), but 8-bit ones are signed.
    """
    has_pair = format.has_min or format.has_zero
    floats, packed = _halves(blocks, 1 + has_pair)
    scales, mins = floats[..., 0], floats[..., 1] if has_pair else None
    if format.bits == 8:
        return packed.view(np.int8), scales, None
    if format.bits == 5:
        fifth = np.unpackbits(packed[..., :4], axis=-1, bitorder="little")
        codes: Bytes = _nibbles(packed[..., 4:]) | fifth << np.uint8(4)
    else:
        codes = _nibbles(packed)
    zero = 0 if has_pair else 1 << (format.bits - 1)
    return codes.view(np.int8) - np.int8(zero), scales, mins


def _unpack_superblocks(
    blocks: Bytes, format: WeightFormat
) -> tuple[NDArray[np.int8], Floats, Floats | None]:
    """Unpack blocks of 256, (N, B, bytes), whose groups have integer scales and share a float."""
    if format.bits == 6:
        return _unpack_q6_k(blocks)
    floats, packed = _halves(blocks, 2)
    factors, offsets = _six_bit_pairs(packed[..., :12])
    packed = packed[..., 12:]
    # Each 32 bytes hold two groups: their low nibbles one, their high ones the next.
    codes = _nibbles(packed[..., -128:].reshape(*packed.shape[:-1], 4, 32))
    codes = codes.reshape(*packed.shape[:-1], 8, 32)
    if format.bits == 5:
        planes = np.unpackbits(packed[..., :32, None], axis=-1, bitorder="little")
        codes |= planes.swapaxes(-1, -2) << np.uint8(4)
    return codes.view(np.int8), floats[..., :1] * factors, -(floats[..., 1:] * offsets)


def _unpack_q6_k(blocks: Bytes) -> tuple[NDArray[np.int8], Floats, None]:
    """Unpack low nibbles (128 bytes), high pairs of bits (64), 16 int8 scales, the float; codes are stored plus 32."""
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:-1], 2, 64))
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32) >> shifts & 3
    codes = low | high.reshape(low.shape) << 4
    floats, _ = _halves(blocks[..., 208:], 1)
    return codes.view(np.int8) - np.int8(32), floats * blocks[..., 192:208].view(np.int8), None


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return eight scales and eight minima of 6 bits in 12 bytes, each (N, B, 8).

    Those of the first four groups lie in bytes 0 to 3 and 4 to 7, whose top two bits are the top ones
    of the other four; their low nibbles are the halves of bytes 8 to 11.
    """
    a, b, c = packed[..., :4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate((a & 63, c & 15 | a >> 2 & 48), axis=-1)
    mins = np.concatenate((b & 63, c >> 4 | b >> 2 & 48), axis=-1)
    return scales, mins


def _halves(blocks: Bytes, count: int) -> tuple[Floats, Bytes]:
    """Return the first numbers of each block, f16, as fp32 (N, B, count), and the bytes after them."""
    first = np.ascontiguousarray(blocks[..., : 2 * count])
    return first.view(np.float16).astype(np.float32), blocks[..., 2 * count :]


def _nibbles(packed: Bytes) -> Bytes:
    """Return the low nibbles of (..., n) bytes, then the high ones: (..., 2 n)."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)
