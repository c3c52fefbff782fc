"""GGUF's formats of 1 to 3 bits whose blocks name points of a grid: IQ1, IQ2 and IQ3.

A block's indices name 4 or 8 values at a time. Here they become a code for each value, which fits the tables of the
kernels: a block is laid out as its fp16 factor, a byte of scale for each group, and 256 nibbles. The layouts are those
of ggml (ggml-common.h); the grids are the `gguf` package's, which is imported for such files alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from numpy.typing import NDArray

from forerun.system import device
from forerun.weights.codes import Bytes, Floats, WeightFormat

Words = NDArray[np.uint32]
"""Nibbles of eight values each, the first one lowest."""
Parts = tuple[Bytes, Bytes, Words]
"""Factors (N, B, 2), scales (N, B, G) and codes (N, B, 32) of B blocks of N rows."""

_ROWS_AT_A_TIME = 128
_STEPS = {"iq3_xxs": 0.25, "iq3_s": 1.0}
"""What factors are multiplied by, where it is not an eighth."""


def lay_out(data: Bytes, format: WeightFormat) -> Bytes:
    """Return rows of a file's blocks (N, bytes a row) as the kernels read them (N, bytes a row)."""
    blocks = data.reshape(len(data), -1, format.block_nbytes)
    nbytes = 2 + 256 // (format.group or 256) + 128
    out = np.empty((*blocks.shape[:2], nbytes), np.uint8)

    def fill(start: int) -> None:
        rows = slice(start, start + _ROWS_AT_A_TIME)
        factors, scales, words = _READERS[format.name](blocks[rows])
        out[rows, :, :2], out[rows, :, 2:-128] = factors, scales
        out[rows, :, -128:] = np.ascontiguousarray(words).view(np.uint8)

    with ThreadPoolExecutor(device.num_cores()) as pool:
        list(pool.map(fill, range(0, len(blocks), _ROWS_AT_A_TIME)))
    return out.reshape(len(data), -1)


def unpack(blocks: Bytes, format: WeightFormat) -> tuple[NDArray[np.int8], Floats]:
    """Return the codes (N, K), places in the format's table, and the scales (N, G) of a file's blocks (N, B, bytes)."""
    factors, scales, words = _READERS[format.name](blocks)
    nibbles = np.ascontiguousarray(words).view(np.uint8)
    codes = np.stack((nibbles & 15, nibbles >> 4), axis=-1).view(np.int8)
    halves = np.ascontiguousarray(factors).view(np.float16).astype(np.float32)
    step = np.float32(_STEPS.get(format.name, 0.125))
    return codes.reshape(len(blocks), -1), (halves * step * scales).reshape(len(blocks), -1)


def _iq2_xxs(blocks: Bytes) -> Parts:
    """Read 8 times: 4 indices, then 4 signs of 7 bits and a scale of 4 in a word."""
    pairs = _words(blocks[..., 2:]).reshape(*blocks.shape[:-1], 8, 2)
    indices = np.ascontiguousarray(pairs[..., 0]).view(np.uint8)
    signs, scales = _signs_and_scales(pairs[..., 1])
    return blocks[..., :2], scales, _grid("IQ2_XXS")[indices] | _signs(2)[signs]


def _iq2_xs(blocks: Bytes) -> Parts:
    """Read 32 words of an index (9 bits) and signs (7), then 16 scales of 4 bits."""
    pairs = np.ascontiguousarray(blocks[..., 2:66]).view(np.uint16)
    words = _grid("IQ2_XS")[pairs & 511] | _signs(2)[_eight_signs(pairs >> 9)]
    return blocks[..., :2], _odd(_in_turn(blocks[..., 66:])), words


def _iq2_s(blocks: Bytes) -> Parts:
    """Read the low bytes of 32 indices, 32 bytes of signs, the indices' tops of 2 bits, 16 scales of 4 bits."""
    tops = blocks[..., 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    indices = _joined(blocks[..., 2:34], tops)
    words = _grid("IQ2_S")[indices] | _signs(2)[blocks[..., 34:66]]
    return blocks[..., :2], _odd(_in_turn(blocks[..., 74:])), words


def _iq3_xxs(blocks: Bytes) -> Parts:
    """Read 64 indices, then 8 words of 4 signs of 7 bits and a scale of 4."""
    signs, scales = _signs_and_scales(_words(blocks[..., 66:]))
    words = _of_fours(_grid("IQ3_XXS"), blocks[..., 2:66])
    return blocks[..., :2], scales, words | _signs(3)[signs]


def _iq3_s(blocks: Bytes) -> Parts:
    """Read the low bytes of 64 indices, their top bits, 32 bytes of signs, 8 scales of 4 bits."""
    tops = blocks[..., 66:74, None] >> np.arange(8, dtype=np.uint8) & 1
    words = _of_fours(_grid("IQ3_S"), _joined(blocks[..., 2:66], tops))
    scales = _odd(_in_turn(blocks[..., 106:]))
    return blocks[..., :2], scales, words | _signs(3)[blocks[..., 74:106]]


def _iq1_s(blocks: Bytes) -> Parts:
    """Read the low bytes of 32 indices, then 8 words: 4 tops of 3 bits, a scale of 3, the direction of the shift."""
    lasts = np.ascontiguousarray(blocks[..., 34:]).view(np.uint16)
    tops = lasts[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    words = _grid("IQ1_S")[_joined(blocks[..., 2:34], tops)].reshape(*lasts.shape, 4)
    shifts = (lasts >> 15).astype(np.uint32) * np.uint32(0x44444444)
    return (
        blocks[..., :2],
        _odd((lasts >> 12 & 7).astype(np.uint8)),
        (words | shifts[..., None]).reshape(*blocks.shape[:-1], 32),
    )


def _iq1_m(blocks: Bytes) -> Parts:
    """Read the low bytes of 32 indices, their nibbles of 3 top bits and the shift, 4 words of scales.

    A word has 4 scales of 3 bits, and above them a nibble of the factor.
    """
    nibbles = _in_turn(blocks[..., 32:48])
    words = _grid("IQ1_S")[_joined(blocks[..., :32], nibbles & 7)]
    words |= (nibbles >> 3).astype(np.uint32) * np.uint32(0x44444444)
    lasts = np.ascontiguousarray(blocks[..., 48:]).view(np.uint16)
    parts = (lasts >> 12) << np.arange(0, 16, 4, dtype=np.uint16)
    factors = np.bitwise_or.reduce(parts, axis=-1, keepdims=True).view(np.uint8)
    scales = lasts[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    return factors, _odd(scales.astype(np.uint8).reshape(*blocks.shape[:-1], 16)), words


_READERS: Mapping[str, Callable[[Bytes], Parts]] = {
    "iq1_m": _iq1_m,
    "iq1_s": _iq1_s,
    "iq2_s": _iq2_s,
    "iq2_xs": _iq2_xs,
    "iq2_xxs": _iq2_xxs,
    "iq3_s": _iq3_s,
    "iq3_xxs": _iq3_xxs,
}
NAMES = frozenset(_READERS)
"""The formats whose blocks name points of a grid."""


@cache
def _grid(name: str) -> Words:
    """Return the points of a grid, each as nibbles that say which of the grid's values its 4 or 8 are."""
    import gguf.quants

    layout = getattr(gguf.quants, name)
    layout.init_grid()
    places = np.searchsorted(layout.grid_map, layout.grid.reshape(layout.grid_shape))
    shifts = np.arange(0, 4 * places.shape[1], 4)
    return np.bitwise_or.reduce(places << shifts, axis=1).astype(np.uint32)


@cache
def _signs(place: int) -> Words:
    """Return the bits of every byte at bit `place` of a nibble each."""
    bits = np.arange(256)[:, None] >> np.arange(8) & 1
    return np.bitwise_or.reduce(bits << np.arange(place, 32 + place, 4), axis=1).astype(np.uint32)


@cache
def _parities() -> Bytes:
    """Return the numbers below 128, the top bit set where they have an odd number of bits."""
    bits = np.arange(128)[:, None] >> np.arange(7) & 1
    return (np.arange(128) | bits.sum(axis=1) % 2 << 7).astype(np.uint8)


def _eight_signs(seven: NDArray[np.integer]) -> Bytes:
    """Return eight signs of seven: the number of those that are set is even."""
    return _parities()[seven]


def _signs_and_scales(words: Words) -> tuple[Bytes, Bytes]:
    """Return the 32 bytes of signs and the 8 scales of words (N, B, 8)."""
    sevens = words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127
    signs = _eight_signs(sevens).reshape(*words.shape[:-1], 32)
    return signs, _odd((words >> 28).astype(np.uint8))


def _odd(numbers: Bytes) -> Bytes:
    """Return scales as they are meant, in halves."""
    return numbers << np.uint8(1) | np.uint8(1)


def _words(packed: Bytes) -> Words:
    return np.ascontiguousarray(packed).view(np.uint32)


def _in_turn(packed: Bytes) -> Bytes:
    """Return the nibbles of bytes, low and high ones in turn."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)


def _joined(lows: Bytes, tops: NDArray[np.integer]) -> NDArray[np.uint16]:
    """Return indices from their low bytes and the bits above them."""
    return lows | tops.reshape(lows.shape).astype(np.uint16) << np.uint16(8)


def _of_fours(grid: Words, indices: NDArray[np.integer]) -> Words:
    """Return the nibbles of points of four values, two points a word."""
    return np.ascontiguousarray(grid[indices].astype(np.uint16)).view(np.uint32)
