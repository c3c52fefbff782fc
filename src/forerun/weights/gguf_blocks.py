"""Quantized matrices in blocks, as GGUF has them: the kernels unpack them and round to them.

The layouts are those of ggml (ggml-common.h); the `gguf` package is the oracle in the tests. N rows, K columns.
"""

from __future__ import annotations

import numpy as np

from forerun.weights.codes import Bytes, Codes, Floats, WeightFormat


def unpack(data: Bytes, format: WeightFormat) -> Codes:
    """Return the codes, scales and minima of rows of blocks (N, bytes a row). Raises ValueError for another format."""
    from forerun import _native

    assert format.group is not None
    num_rows, num_in = len(data), data.shape[1] // format.block_nbytes * format.block
    codes = np.empty((num_rows, num_in), np.uint8)
    scales = np.empty((num_rows, num_in // format.group), np.float32)
    offsets = np.empty_like(scales) if format.has_min or format.has_zero else None
    _native.unpack_blocks(format.name, np.ascontiguousarray(data), codes, scales, offsets)
    return Codes(
        codes if format.bits == 8 and format.has_min else codes.view(np.int8),
        scales,
        mins=None if format.has_zero else offsets,
        zeros=-offsets if offsets is not None and format.has_zero else None,
    )


def nvfp4(scales: Bytes, packed: Bytes, factors: Floats) -> Bytes:
    """Return the blocks of rows (N, bytes a row): scales (N, G) of e4m3, nibbles (N, G, 8), factors (N,).

    Of a group's 16 codes the first 8 are low nibbles. As ggml reads scales, they have no sign, and none is NaN.
    """
    num_rows, num_groups = scales.shape
    blocks = np.empty((num_rows, num_groups // 2, 22), np.uint8)
    blocks[..., :4] = (
        np.ascontiguousarray(factors, np.float32).view(np.uint8).reshape(num_rows, 1, 4)
    )
    scales = scales & np.uint8(0x7F)
    blocks[..., 4:6] = np.where(scales == 0x7F, 0, scales).reshape(num_rows, -1, 2)
    blocks[..., 6:] = packed.reshape(num_rows, -1, 16)
    return blocks.reshape(num_rows, -1)


def quantize(values: Floats, format: WeightFormat) -> Bytes:
    """Round fp32 (N, K) to the nearest codes of blocks of q8_0 or q4_1: (N, bytes a row). Raises ValueError."""
    from forerun import _native

    num_bytes = values.shape[1] // format.block * format.block_nbytes
    blocks = np.empty((len(values), num_bytes), np.uint8)
    _native.round_blocks(format.name, np.ascontiguousarray(values, np.float32), blocks)
    return blocks
