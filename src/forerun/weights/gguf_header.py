"""The header of a GGUF file: metadata and where the tensors lie.

The reader of the `gguf` package, the oracle in the tests, takes seconds for a vocabulary; this one
takes a tenth of one. Versions 2 and 3, little-endian, which is what exists.

Layout: magic, version, number of tensors, number of keys; the keys with their typed values; the
tensors' names, shapes, types and offsets; padding; the data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from forerun.core.errors import LoadError, short_repr

Scalar = bool | int | float | str
Value = Scalar | list[bool] | list[int] | list[float] | list[str]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_LONGEST_NAME = 256
_BLOCK = 1 << 20
"""Bytes of a list of texts that are looked at together; no text is longer."""

DEFAULT_ALIGNMENT = 32
"""Of the data and each tensor in it, where the metadata name none."""

TENSOR_TYPES: Mapping[int, str] = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), 6)),
    **dict(enumerate(("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"), 16)),
    **dict(enumerate(("I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"), 24)),
    **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"},
}  # fmt: skip
"""ggml's names of how tensors are stored, by their numbers in the file (`ggml_type`)."""


class _Kind(IntEnum):
    """Types of metadata (`gguf_type`)."""

    (
        UINT8,
        INT8,
        UINT16,
        INT16,
        UINT32,
        INT32,
        FLOAT32,
        BOOL,
        STRING,
        ARRAY,
        UINT64,
        INT64,
        FLOAT64,
    ) = range(13)


_NUMBERS: Mapping[int, np.dtype[np.generic]] = {
    _Kind.UINT8: np.dtype("<u1"),
    _Kind.INT8: np.dtype("<i1"),
    _Kind.UINT16: np.dtype("<u2"),
    _Kind.INT16: np.dtype("<i2"),
    _Kind.UINT32: np.dtype("<u4"),
    _Kind.INT32: np.dtype("<i4"),
    _Kind.FLOAT32: np.dtype("<f4"),
    _Kind.BOOL: np.dtype("?"),
    _Kind.UINT64: np.dtype("<u8"),
    _Kind.INT64: np.dtype("<i8"),
    _Kind.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `shape` in torch's order, `offset` from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """What comes before the weights; `stop` is the first byte after it."""

    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    stop: int


def read_header(data: mmap.mmap) -> Header:
    """Parse the header. Raises LoadError that says what is wrong, without naming the file."""
    if data[:4] != _MAGIC:
        raise LoadError(f"it is not a GGUF file: it begins with {data[:4]!r} instead of {_MAGIC!r}")
    reader = _Reader(data, at=4)
    version = reader.u32()
    if version not in _VERSIONS:
        raise LoadError(
            f"GGUF version {version} is not supported: only 2 and 3, little-endian, are"
        )
    num_tensors, num_keys = reader.u64(), reader.u64()
    metadata: dict[str, Value] = {}
    for _ in range(num_keys):
        key = reader.text()
        metadata[key] = reader.value()
    tensors = tuple(reader.tensor() for _ in range(num_tensors))
    return Header(metadata, tensors, reader.at)


class _Reader:
    """Reads one thing after the other; LoadError at the end of the file."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self.at = at

    def u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def text(self) -> str:
        try:
            return self._take(self.u64()).decode()
        except UnicodeDecodeError as error:
            raise LoadError("the file is corrupt: a text in its header is not UTF-8") from error

    def value(self) -> Value:
        kind = self.u32()
        if kind == _Kind.STRING:  # an author's name in Latin-1 is not a reason to refuse a model
            return self._take(self.u64()).decode(errors="replace")
        if kind == _Kind.ARRAY:
            kind, count = self.u32(), self.u64()
            return self._texts(count) if kind == _Kind.STRING else self._numbers(kind, count)
        return self._numbers(kind, 1)[0]

    def tensor(self) -> TensorInfo:
        name = self.text()
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise LoadError(f"the file is corrupt: a tensor is called {short_repr(name)}")
        num_dims = self.u32()
        if not 1 <= num_dims <= _MAX_DIMS:
            raise LoadError(f"the file is corrupt: tensor '{name}' has {num_dims} dimensions")
        shape = tuple(self.u64() for _ in range(num_dims))[::-1]
        return TensorInfo(name, shape, type_id=self.u32(), offset=self.u64())

    def _numbers(self, kind: int, count: int) -> list[bool] | list[int] | list[float]:
        if kind not in _NUMBERS:
            raise LoadError(
                f"the file is corrupt or too new: its header has a value of type {kind}"
            )
        dtype = _NUMBERS[kind]
        values = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        assert isinstance(values, list)
        return values

    def _texts(self, count: int) -> list[str]:
        # Vocabularies have 10^5 elements: this is the loop that decides how long opening takes. Bytes are cut faster
        # than a map.
        texts: list[str] = []
        try:
            while len(texts) < count:
                self.at += _split(self._data[self.at : self.at + _BLOCK], texts, count)
        except (struct.error, UnicodeDecodeError) as error:
            raise LoadError("the file is truncated or corrupt inside a list of texts") from error
        return texts

    def _take(self, num_bytes: int) -> bytes:
        start = self.at
        self._skip_to(start + num_bytes)
        return self._data[start : self.at]

    def _skip_to(self, stop: int) -> None:
        if stop > len(self._data):
            raise LoadError(
                f"the file is truncated: its header does not end within {len(self._data)} bytes"
            )
        self.at = stop


def _split(block: bytes, texts: list[str], count: int) -> int:
    """Add the texts that a block begins with, up to `count` in all; return how many bytes they take.

    Raises struct.error if there is not one whole text.
    """
    length_at, at, start = struct.Struct("<Q").unpack_from, 0, len(texts)
    while len(texts) < count and at + 8 <= len(block):
        stop = at + 8 + length_at(block, at)[0]
        if stop > len(block):
            break
        texts.append(block[at + 8 : stop].decode())
        at = stop
    if len(texts) == start:
        raise struct.error("a text does not end")
    return at
