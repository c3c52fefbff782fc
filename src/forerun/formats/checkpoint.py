"""A model file as it lies on disk: metadata, tensors in their stored precision, the tokenizer.

Nothing is computed at opening, and the weights stay memory-mapped. What the numbers mean to a
decoder is the business of `nn/arch`; reading a concrete format is that of `gguf.py` and `hf.py`.
"""

from __future__ import annotations

import difflib
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.formats.tokenizer import Tokenizer

READABLE = frozenset(
    gguf.GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)
"""How a tensor may be stored, in GGUF's names; safetensors files use the first three."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored. `shape` is in torch's order, (out, in) for a linear weight.

    `data` holds the bytes, uint8, shape (shape[0], bytes a row), or (1, bytes) for a vector;
    usually a view of the memory-mapped file. Every format stores row by row, so taking rows keeps
    their quantization exactly.
    """

    name: str
    shape: tuple[int, ...]
    dtype: gguf.GGMLQuantizationType
    data: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return self.data.nbytes

    def rows(self, index: slice | NDArray[np.int64]) -> StoredTensor:
        """Some rows of a matrix, or elements of an unquantized vector, still as stored.

        Raises LoadError for a quantized vector, whose elements cannot be taken apart.
        """
        if len(self.shape) > 1:
            data = self.data[index]
            return replace(self, shape=(len(data), *self.shape[1:]), data=data)
        block_size, type_size = gguf.GGML_QUANT_SIZES[self.dtype]
        if block_size > 1:
            raise LoadError(f"'{self.name}' is a quantized vector: no elements of it can be taken")
        data = self.data.reshape(-1, type_size)[index]
        return replace(self, shape=(len(data),), data=data.reshape(1, -1))

    def dequantize(self) -> Tensor:
        """The values, fp32, shape `shape`, in memory of their own."""
        values = gguf.dequantize(self.data, self.dtype)
        if self.dtype == gguf.GGMLQuantizationType.F32:
            values = values.copy()  # so far a view of the file
        return torch.from_numpy(values).reshape(self.shape)

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


class Checkpoint(Protocol):
    """A model on disk.

    `config` is config.json, or the GGUF metadata without the arrays of the tokenizer;
    `architecture` is `architectures[0]` of the one or `general.architecture` of the other.
    """

    path: Path
    kind: Literal["gguf", "hf"]
    architecture: str
    config: Mapping[str, object]

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        ...

    def tensor(self, name: str) -> StoredTensor:
        """One tensor as stored. Raises LoadError with the closest names if there is none."""
        ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer inside. Raises LoadError if there is none or it is of an unknown kind."""
        ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. Raises LoadError if it is neither, or damaged."""
    # The formats import this module.
    from forerun.formats.gguf import GgufCheckpoint
    from forerun.formats.hf import HfCheckpoint

    path = Path(path)
    if path.is_dir():
        return HfCheckpoint(path)
    if not path.is_file():
        raise LoadError(f"{path} does not exist: give a GGUF file or a Hugging Face folder")
    return GgufCheckpoint(path)


def no_tensor(path: Path, name: str, names: Iterable[str]) -> LoadError:
    """The complaint about a tensor that is not in the file."""
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"; the closest are {', '.join(close)}" if close else ""
    return LoadError(f"{path} has no tensor '{name}'{hint}")
