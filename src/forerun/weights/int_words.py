"""Codes of a few bits in int32 words, as AWQ, GPTQ and compressed-tensors store them.

A row of words is one stream of bits, the lowest bit of a word first: code i of b bits is bits i * b to i * b + b - 1,
also where that crosses a word (3 bits: 32 codes in 3 words). AWQ's `gemm` layout changes the order in each word.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.weights.codes import Bytes

Words = NDArray[np.int32]

AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""Nibble i of a word holds column AWQ_ORDER[i] of its eight."""
_AWQ_PLACE = np.argsort(AWQ_ORDER)


def unpack(words: Words, bits: int, count: int) -> Bytes:
    """Return the first `count` codes of each row of words (R, W): (R, count)."""
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data[:, :count]
    if bits == 4:
        return np.stack((data & 15, data >> 4), axis=-1).reshape(len(data), -1)[:, :count]
    stream = np.unpackbits(data, axis=-1, count=count * bits, bitorder="little")
    planes = stream.reshape(len(data), count, bits) << np.arange(bits, dtype=np.uint8)
    return np.bitwise_or.reduce(planes, axis=-1)


def pack(codes: Bytes, bits: int) -> Words:
    """Return the codes (R, count) below 2 ** bits as words (R, ceil(count * bits / 32)), zero bits after the last."""
    stream = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    data = np.packbits(stream.reshape(len(codes), -1), axis=-1, bitorder="little")
    padded = np.pad(data, ((0, 0), (0, -data.shape[1] % 4)))
    return np.ascontiguousarray(padded).view(np.int32)


def unpack_awq(words: Words) -> Bytes:
    """Return the 4-bit codes (R, 8 W) of words (R, W) in AWQ's order."""
    codes = unpack(words, 4, 8 * words.shape[1]).reshape(len(words), -1, 8)
    return codes[..., _AWQ_PLACE].reshape(len(words), -1)


def pack_awq(codes: Bytes) -> Words:
    """Return the reverse of `unpack_awq`; the number of columns is a multiple of 8."""
    ordered = codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER]
    return pack(ordered.reshape(len(codes), -1), 4)
