"""Quantized matrices in GGUF's blocks: how codes, scales and minima lie in the bytes.

The layouts are those of ggml (ggml-common.h); the `gguf` package, which only gives values, is the
oracle in the tests. N rows, K columns, B = K / block blocks a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.core.native import native_problem
from forerun.weights import gguf_grids
from forerun.weights.codes import E4M3, Bytes, Codes, Floats, WeightFormat

_ROUNDED = ("q8_0", "q4_1")
"""What the native library rounds to."""


def unpack(data: Bytes, format: WeightFormat) -> Codes:
    """Return the codes, scales and minima of rows of blocks (N, bytes a row)."""
    num_rows = len(data)
    blocks = data.reshape(num_rows, -1, format.block_nbytes)
    read = _READERS.get(format.name, _unpack_blocks)
    codes, scales, offsets = read(blocks, format)
    if format.values is not None:
        codes = np.array(format.values, np.int8)[codes.view(np.uint8)]
    offsets = None if offsets is None else offsets.reshape(num_rows, -1)
    return Codes(
        codes.reshape(num_rows, -1),
        scales.reshape(num_rows, -1),
        mins=None if format.has_zero else offsets,
        zeros=-offsets if offsets is not None and format.has_zero else None,
    )


def for_kernels(data: Bytes, format: WeightFormat) -> Bytes:
    """Return rows of blocks as the kernels read them: grids' points as codes, others as they are."""
    return gguf_grids.lay_out(data, format) if format.name in gguf_grids.NAMES else data


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
    """Round fp32 (N, K) to the nearest codes of each block: (N, bytes a row)."""
    if format.name in _ROUNDED and native_problem() is None and bool(np.isfinite(values).all()):
        from forerun import _native

        num_bytes = values.shape[1] // format.block * format.block_nbytes
        blocks = np.empty((len(values), num_bytes), np.uint8)
        _native.round_blocks(format.name, np.ascontiguousarray(values, np.float32), blocks)
        return blocks
    import gguf  # the plain way, which takes a tenth of a second to import

    plain: Bytes = gguf.quantize(values, gguf.GGMLQuantizationType[format.name.upper()])
    return plain


Unpacked = tuple[NDArray[np.int8] | Bytes, Floats, Floats | None]
"""Codes, scales, and minima if any, of blocks."""


def _unpack_blocks(blocks: Bytes, format: WeightFormat) -> Unpacked:
    """Unpack blocks of 32, (N, B, bytes): scale f16, minimum f16 if any, fifth bits (32) if any, codes.

    In place of a minimum `q*_z` have minus their zero point.
    Low nibbles are codes 0 to 15, high ones 16 to 31. Without a minimum codes are stored plus
    2 ** (bits - 1), but 8-bit ones are signed.
    """
    has_pair = format.has_min or format.has_zero
    floats, packed = _halves(blocks, 1 + has_pair)
    scales, mins = floats[..., 0], floats[..., 1] if has_pair else None
    if format.bits == 8:
        return packed if format.has_min else packed.view(np.int8), scales, mins
    if format.bits == 5:
        fifth = np.unpackbits(packed[..., :4], axis=-1, bitorder="little")
        codes: Bytes = _nibbles(packed[..., 4:]) | fifth << np.uint8(4)
    else:
        codes = _nibbles(packed)
    zero = 0 if has_pair or format.values else 1 << (format.bits - 1)
    return codes.view(np.int8) - np.int8(zero), scales, mins


def _unpack_mxfp4(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack a byte of exponent e, half of whose 2 ** (e - 127) is the scale, then 16 bytes of nibbles."""
    exponents = blocks[..., :1].astype(np.uint32)
    bits = np.where(exponents < 2, 0x200000 << exponents, (exponents - 1) << 23)
    return _nibbles(blocks[..., 1:]).view(np.int8), bits.astype(np.uint32).view(np.float32), None


def _unpack_nvfp4(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack the factor (f32), two e4m3 scales, 16 bytes of nibbles, a half for each scale."""
    factors = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    codes = _nibbles(blocks[..., 6:].reshape(*blocks.shape[:-1], 2, 8))
    return codes.view(np.int8), E4M3[blocks[..., 4:6]] * np.float32(0.5) * factors, None


def _unpack_tq1_0(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack digits in base 3: five of 32 bytes, five of 16, four of 4, those of a place together; the float."""

    def digits(packed: Bytes, count: int) -> Bytes:
        powers = np.array([1, 3, 9, 27, 81], np.uint8)[:count, None]
        found = (packed[..., None, :] * powers).astype(np.uint16) * 3 >> 8
        return found.reshape(*packed.shape[:-1], -1).astype(np.uint8)

    parts = (blocks[..., :32], 5), (blocks[..., 32:48], 5), (blocks[..., 48:52], 4)
    codes = np.concatenate([digits(*part) for part in parts], axis=-1)
    return codes.view(np.int8) - np.int8(1), _halves(blocks[..., 52:], 1)[0], None


def _unpack_tq2_0(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack the codes (64 bytes), stored plus 1, and the float."""
    codes = _bit_pairs(blocks[..., :64]).view(np.int8) - np.int8(1)
    return codes, _halves(blocks[..., 64:], 1)[0], None


def _unpack_grid(blocks: Bytes, format: WeightFormat) -> Unpacked:
    return *gguf_grids.unpack(blocks, format), None


def _unpack_iq4_xs(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack the float, tops of eight scales (2 bytes), their nibbles (4), codes in runs of 32."""
    floats, packed = _halves(blocks, 1)
    tops = packed[..., :2, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    lows = np.stack((packed[..., 2:6] & 15, packed[..., 2:6] >> 4), axis=-1)
    scales = (lows.reshape(*lows.shape[:-2], 8) | tops.reshape(*lows.shape[:-2], 8) << 4).view("i1")
    codes = _nibbles(packed[..., 6:].reshape(*packed.shape[:-1], 8, 16))
    return codes.view(np.int8), floats * (scales - np.int8(32)), None


def _unpack_q2_k(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack 16 bytes of scale and minimum, the codes (64 bytes), the two floats."""
    pairs, floats = blocks[..., :16], _halves(blocks[..., 80:], 2)[0]
    codes = _bit_pairs(blocks[..., 16:80]).view(np.int8)
    return codes, floats[..., :1] * (pairs & 15), -(floats[..., 1:] * (pairs >> 4))


def _unpack_q3_k(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack third bits (32 bytes), low pairs of bits (64), scales of 6 bits (12), the float.

    Codes are stored plus 4, scales plus 32: the low nibbles of all, then pairs of top bits.
    """
    planes = blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _bit_pairs(blocks[..., 32:96]) | planes.reshape(*blocks.shape[:-1], 256) << 2
    lows = _nibbles(blocks[..., 96:104])
    tops = blocks[..., None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = (lows | tops.reshape(lows.shape) << 4).view(np.int8) - np.int8(32)
    return codes.view(np.int8) - np.int8(4), _halves(blocks[..., 108:], 1)[0] * scales, None


def _unpack_q4_or_q5_k(blocks: Bytes, format: WeightFormat) -> Unpacked:
    """Unpack the two floats, eight scales and minima (12 bytes), fifth bits if any (32), the nibbles (128)."""
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


def _unpack_q6_k(blocks: Bytes, _: WeightFormat) -> Unpacked:
    """Unpack low nibbles (128 bytes), high pairs of bits (64), 16 int8 scales, the float; codes are stored plus 32."""
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:-1], 2, 64))
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32) >> shifts & 3
    codes = low | high.reshape(low.shape) << 4
    floats = _halves(blocks[..., 208:], 1)[0]
    return codes.view(np.int8) - np.int8(32), floats * blocks[..., 192:208].view(np.int8), None


_READERS: Mapping[str, Callable[[Bytes, WeightFormat], Unpacked]] = {
    "q2_k": _unpack_q2_k,
    "q3_k": _unpack_q3_k,
    "q4_k": _unpack_q4_or_q5_k,
    "q5_k": _unpack_q4_or_q5_k,
    "q6_k": _unpack_q6_k,
    "iq4_xs": _unpack_iq4_xs,
    "mxfp4": _unpack_mxfp4,
    "nvfp4": _unpack_nvfp4,
    "tq1_0": _unpack_tq1_0,
    "tq2_0": _unpack_tq2_0,
    **dict.fromkeys(gguf_grids.NAMES, _unpack_grid),
}
"""Those of blocks that are not like Q4_0 to Q8_0."""


def _bit_pairs(packed: Bytes) -> Bytes:
    """Return 256 pairs of bits: each 32 of 64 bytes hold 128, the lowest bits of all first."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs: Bytes = packed.reshape(*packed.shape[:-1], 2, 1, 32) >> shifts & np.uint8(3)
    return pairs.reshape(*packed.shape[:-1], 256)


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
