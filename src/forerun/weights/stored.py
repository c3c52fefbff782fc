"""A tensor as it lies in a file, for every file format."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.weights import gguf_blocks
from forerun.weights.codes import FORMATS, Bytes, Codes, Rows, WeightFormat


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored, row by row, so that taking rows keeps their quantization exactly."""

    name: str
    """Its name in the file."""
    shape: tuple[int, ...]
    """In torch's order: (out, in) for a linear weight."""
    format: WeightFormat
    data: Bytes
    """Its bytes, (shape[0], bytes a row), or (1, bytes) for a vector; usually a view of the mapped file."""
    read: Callable[[], Codes] | None = None
    """Unpacks codes that a folder keeps in another layout, in several tensors; `data` are those of one of them."""
    index: NDArray[np.int64] | None = None
    """Which rows of `read`; None for all."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codes as they lie in the file."""
        return self.data.nbytes

    def rows(self, index: Rows) -> StoredTensor:
        """Return some rows of a matrix, or elements of a vector. Raises LoadError for a quantized vector."""
        if self.read is not None:
            rows = (np.arange(self.shape[0]) if self.index is None else self.index)[index]
            return replace(self, shape=(len(rows), *self.shape[1:]), index=rows)
        if len(self.shape) > 1:
            data = self.data[index]
            return replace(self, shape=(len(data), *self.shape[1:]), data=data)
        if self.format.group is not None:
            raise LoadError(f"'{self.name}' is a quantized vector: no elements of it can be taken")
        data = self.data.reshape(-1, self.format.block_nbytes)[index]
        return replace(self, shape=(len(data),), data=data.reshape(1, -1))

    def codes(self) -> Codes:
        """Return the codes of a matrix; a vector is one row.

        Raises ValueError for floating-point numbers, LoadError for codes that are out of range.
        """
        if self.read is not None:
            codes = self.read()
            codes.check(self.name, self.format.bits)
            return codes if self.index is None else codes.rows(self.index)
        if self.format.group is None:
            raise ValueError(f"'{self.name}' is stored as {self.format.name}: it has no codes")
        return gguf_blocks.unpack(self.data, self.format)

    def dequantize(self) -> Tensor:
        """Return the values, fp32, shape `shape`, in memory of their own."""
        stored = self.unpacked()
        if stored.read is not None or stored.format.group is not None:
            values = stored.codes().values()
        else:
            values = _floats(np.ascontiguousarray(stored.data), self.format.name)
        return torch.from_numpy(values).reshape(self.shape)

    def unpacked(self) -> StoredTensor:
        """Return this tensor with codes in another layout unpacked once, and columns in another order as fp16."""
        if self.read is None:
            return self
        codes = self.codes()
        if codes.groups is None:
            return replace(self, read=lambda: codes, index=None)
        data = codes.values().astype(np.float16).view(np.uint8)
        return StoredTensor(self.name, self.shape, FORMATS["f16"], data)

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


def _floats(data: Bytes, format: str) -> NDArray[np.float32]:
    if format == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float16 if format == "f16" else np.float32).astype(np.float32)
