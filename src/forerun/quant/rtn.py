"""Round to nearest: full-precision weights become GGUF's blocks of 32 weights.

8 bits come with a scale, 4 bits with a scale and a minimum. There is no calibration: each block's grid
spans its own range. It stands between `formats` (stored tensors as read) and `nn` (which packs them);
weights that are quantized already keep their grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, get_args

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from forerun.core.errors import ConfigError, unknown
from forerun.formats.checkpoint import StoredTensor

Scheme = Literal["none", "int8", "int4"]

SCHEMES: tuple[str, ...] = get_args(Scheme)

HEAD_BITS = (4, 8)
"""What `requantize` can make of a head."""

_TYPES = {"int8": Type.Q8_0, "int4": Type.Q4_1}
_FULL_PRECISION = frozenset({Type.F32, Type.F16, Type.BF16})
_VOCABULARY = frozenset({"embed", "head"})
_LEFT_ALONE = frozenset({"positions"})
_ROWS_AT_A_TIME = 4096


def quantize(stored: StoredTensor, scheme: Scheme) -> StoredTensor:
    """A matrix of full precision in the scheme's blocks; anything else as it is.

    Rows whose width is not a multiple of 32 have no blocks and stay, too.
    """
    if scheme not in SCHEMES:
        raise ConfigError(unknown("quantization", scheme, SCHEMES))
    is_matrix = len(stored.shape) == 2 and stored.shape[1] % 32 == 0
    if scheme == "none" or not is_matrix or stored.dtype not in _FULL_PRECISION:
        return stored
    values = stored.dequantize().numpy()
    return replace(stored, dtype=_TYPES[scheme], data=gguf.quantize(values, _TYPES[scheme]))


def quantize_weights(
    weights: Iterable[tuple[str, StoredTensor]],
    scheme: Scheme,
    *,
    vocabulary_scheme: Scheme = "int8",
) -> Iterator[tuple[str, StoredTensor]]:
    """Weights by canonical name, quantized one by one; the embedding and the head by a scheme of their own.

    The head decides between close tokens, so by default it keeps 8 bits.
    """
    for name, stored in weights:
        if name in _LEFT_ALONE or scheme == "none":
            yield name, stored
        else:
            yield name, quantize(stored, vocabulary_scheme if name in _VOCABULARY else scheme)


def requantize(stored: StoredTensor, bits: int) -> StoredTensor:
    """A matrix stored in any way, in blocks of 4 or 8 bits: its values change, even if they were quantized.

    Raises ConfigError for other bits or a width that is not a multiple of 32. A few rows are
    widened at a time, so a large vocabulary needs no fp32 copy of itself.
    """
    if bits not in HEAD_BITS:
        raise ConfigError(unknown("number of bits", str(bits), map(str, HEAD_BITS)))
    if len(stored.shape) != 2 or stored.shape[1] % 32:
        raise ConfigError(f"'{stored.name}' {stored.shape} has no rows in blocks of 32")
    dtype = _TYPES["int4" if bits == 4 else "int8"]
    starts = range(0, stored.shape[0], _ROWS_AT_A_TIME)
    parts = (stored.rows(slice(start, start + _ROWS_AT_A_TIME)) for start in starts)
    data = [gguf.quantize(part.dequantize().numpy(), dtype) for part in parts]
    return replace(stored, dtype=dtype, data=np.concatenate(data))


def relative_error(original: StoredTensor, quantized: StoredTensor) -> float:
    """Root mean square of what quantization changed, relative to that of the weights."""
    before, after = original.dequantize().numpy(), quantized.dequantize().numpy()
    return float(np.sqrt(np.square(before - after).mean() / np.square(before).mean()))
