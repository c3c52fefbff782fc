"""Weights as stored: their formats by name, and a stored tensor of plain numbers, from which those of codes derive.

N rows (outputs), K columns (inputs) of a matrix; g weights share a scale.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.errors import LoadError

Rows = slice | NDArray[np.int64]
"""Which rows of a matrix, or elements of a vector."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How numbers are stored. A row is a sequence of blocks of `block` weights in `block_nbytes` bytes.

    With a group g, weight w of a row is `scale[w // g] * code[w] + min[w // g]`, or with zero points
    `scale[w // g] * (code[w] - zero[w // g])`; without a group it is a floating-point number, or a code with a scale
    a row (`q4_c`, `q8_c`, of flattened inputs).
    """

    name: str
    """In lower case, as GGUF spells it; GGUF has no zero points and no scales a row: `q4_z`, `q*_c` are our names."""
    bits: int
    """Of one code, or of one floating-point number."""
    group: int | None = None
    has_min: bool = False
    block: int = 1
    block_nbytes: int = 0
    has_zero: bool = False

    @property
    def bits_per_weight(self) -> float:
        """Bits a weight takes, its part of the scales included."""
        return 8 * self.block_nbytes / self.block


FORMATS: Mapping[str, WeightFormat] = {
    format.name: format
    for format in (
        WeightFormat("f32", 32, block_nbytes=4),
        WeightFormat("f16", 16, block_nbytes=2),
        WeightFormat("bf16", 16, block_nbytes=2),
        WeightFormat("q4_0", 4, 32, False, 32, 18),
        WeightFormat("q4_1", 4, 32, True, 32, 20),
        WeightFormat("q4_z", 4, 32, False, 32, 20, has_zero=True),
        WeightFormat("q5_0", 5, 32, False, 32, 22),
        WeightFormat("q5_1", 5, 32, True, 32, 24),
        WeightFormat("q8_0", 8, 32, False, 32, 34),
        WeightFormat("q4_k", 4, 32, True, 256, 144),
        WeightFormat("q5_k", 5, 32, True, 256, 176),
        WeightFormat("q6_k", 6, 16, False, 256, 210),
        WeightFormat("q4_c", 4, None, False, 32, 16),
        WeightFormat("q8_c", 8, None, False, 32, 32),
    )
}
"""The formats that can be read, by name; safetensors files have the first three, GGUF all but `q4_z` and `q*_c`."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Integer codes (N, K) int8, scales (N, K / g) fp32, minima (N, K / g) fp32 or None: scale * code + min.

    Or zero points (N, K / g), whole numbers in fp32: scale * (code - zero).
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    mins: NDArray[np.float32] | None
    zeros: NDArray[np.float32] | None = None

    def values(self) -> NDArray[np.float32]:
        """Return the weights (N, K), fp32, rounded after the product and after the sum."""
        num_rows, num_groups = self.scales.shape
        values = self.codes.reshape(num_rows, num_groups, -1).astype(np.float32)
        if self.zeros is not None:
            values -= self.zeros[..., None]
        values *= self.scales[..., None]
        if self.mins is not None:
            values += self.mins[..., None]
        return values.reshape(self.codes.shape)


def left_of(index: Rows | None, num_rows: int, more: Rows) -> NDArray[np.int64]:
    """Return the numbers of the rows that are left of those in `index`, None for all."""
    left = np.arange(num_rows) if index is None else index
    assert isinstance(left, np.ndarray)
    return left[more]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored, row by row, so that taking rows keeps their quantization exactly.

    This one holds f32, f16 or bf16 numbers; `BlockTensor`, `CodedTensor` and `FlatTensor` hold codes.
    """

    name: str
    """Its name in the file."""
    shape: tuple[int, ...]
    """In torch's order: (out, in) for a linear weight."""
    format: WeightFormat
    data: NDArray[np.uint8]
    """Its bytes, (shape[0], bytes a row), or (1, bytes) for a vector; usually a view of the mapped file."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codes as they lie in the file."""
        return self.data.nbytes

    def rows(self, index: Rows) -> Self:
        """Some rows of a matrix, or elements of an unquantized vector. Raises LoadError for a quantized vector."""
        if len(self.shape) > 1:
            data = self.data[index]
            return replace(self, shape=(len(data), *self.shape[1:]), data=data)
        if self.format.group is not None:
            raise LoadError(f"'{self.name}' is a quantized vector: no elements of it can be taken")
        data = self.data.reshape(-1, self.format.block_nbytes)[index]
        return replace(self, shape=(len(data),), data=data.reshape(1, -1))

    def codes(self) -> Codes:
        """Return the codes, scales and minima of a matrix. Raises ValueError if the format has no groups."""
        raise ValueError(f"'{self.name}' is stored as {self.format.name}: it has no codes")

    def dequantize(self) -> Tensor:
        """Return the values, fp32, shape `shape`, in memory of their own: `codes().values()` if there are codes."""
        data = np.ascontiguousarray(self.data)
        if self.format.name == "bf16":
            values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = data.view(np.float16 if self.format.name == "f16" else np.float32)
        return torch.from_numpy(values.astype(np.float32)).reshape(self.shape)

    def plain(self) -> StoredTensor:
        """This tensor with what takes long to unpack unpacked; here, itself."""
        return self

    def release(self) -> None:
        """Give the memory of a mapped tensor back to the system; it can still be read, from the file again."""
        owner: object = self.data
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
        if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = self.data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
        first = start - start % mmap.PAGESIZE
        owner.madvise(mmap.MADV_DONTNEED, first, start + self.nbytes - first)
