"""Round to nearest: full-precision weights become GGUF's blocks of 32 weights.

8 bits come with a scale, 4 bits with a scale and a minimum. There is no calibration: each block's grid
spans its own range. Weights that take no more bits already keep their grid.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import numpy as np

from forerun.core.errors import ConfigError, unknown
from forerun.system import device
from forerun.weights.codes import FORMATS, WeightFormat
from forerun.weights.gguf_blocks import quantize
from forerun.weights.stored import StoredTensor

Scheme = Literal["none", "int8", "int4"]

SCHEMES: tuple[str, ...] = get_args(Scheme)

HEAD_BITS = (4, 8)
"""What `requantize` can make of a head."""

_FORMATS = {"int8": "q8_0", "int4": "q4_1"}
_VOCABULARY = frozenset({"embed", "head", "per_layer_embed"})
_LEFT_ALONE = ("positions", "router", "laurel_left", "laurel_right", "altup_proj", "altup_unembed")
_ROWS_AT_A_TIME = 512


def quantize_weight(name: str, stored: StoredTensor, scheme: Scheme) -> StoredTensor:
    """Return a weight, by its canonical name, in the scheme's blocks if that takes fewer bits; else as it is.

    Raises ConfigError for an unknown scheme.
    """
    format = quantized_format(name, stored.shape, stored.format, scheme)
    return stored if format == stored.format else _round(stored, format)


def quantized_format(
    name: str, shape: tuple[int, ...], stored: WeightFormat, scheme: Scheme
) -> WeightFormat:
    """Return how `quantize_weight` stores a weight.

    Vectors, position tables and rows whose width is not a multiple of 32 stay, and so do routers: each is small
    and decides between close experts. So do the matrices of AltUp and LAuReL, as in llama.cpp's files. The embedding
    and the head, which decide between close tokens, keep 8 bits. Raises ConfigError for an unknown scheme.
    """
    if scheme not in SCHEMES:
        raise ConfigError(unknown("quantization", scheme, SCHEMES))
    is_matrix = len(shape) == 2 and shape[1] % 32 == 0
    if scheme == "none" or name.endswith(_LEFT_ALONE) or not is_matrix:
        return stored
    rounded = FORMATS[_FORMATS["int8" if name in _VOCABULARY else scheme]]
    return min(rounded, stored, key=lambda format: format.bits_per_weight)


def requantize(stored: StoredTensor, bits: int) -> StoredTensor:
    """Return a matrix stored in any way, in blocks of 4 or 8 bits: its values change, even if they were quantized.

    Raises ConfigError for other bits or a width that is not a multiple of 32.
    """
    format = rounded_format(bits)
    if len(stored.shape) != 2 or stored.shape[1] % 32:
        raise ConfigError(f"'{stored.name}' {stored.shape} has no rows in blocks of 32")
    return _round(stored, format)


def rounded_format(bits: int) -> WeightFormat:
    """Return how `requantize` stores a matrix. Raises ConfigError for other bits than 4 and 8."""
    if bits not in HEAD_BITS:
        raise ConfigError(unknown("number of bits", str(bits), map(str, HEAD_BITS)))
    return FORMATS[_FORMATS["int4" if bits == 4 else "int8"]]


def _round(stored: StoredTensor, format: WeightFormat) -> StoredTensor:
    """Round in parallel, some rows at a time: a large vocabulary needs no fp32 copy of itself."""
    starts = range(0, stored.shape[0], _ROWS_AT_A_TIME)
    stored = stored.unpacked()

    def rounded(start: int) -> np.ndarray:
        rows = stored.rows(slice(start, start + _ROWS_AT_A_TIME))
        return quantize(rows.dequantize(), format)

    with ThreadPoolExecutor(device.num_cores()) as pool:
        data = np.concatenate(list(pool.map(rounded, starts)))
    return StoredTensor(stored.name, stored.shape, format, data)
