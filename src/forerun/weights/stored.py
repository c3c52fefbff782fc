"""A tensor as it lies in a file, for every file format."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError
from forerun.weights import gguf_blocks
from forerun.weights.codes import FORMATS, Bytes, Codes, Floats, Rows, WeightFormat


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
    read: Callable[[], Codes | Bytes] | None = None
    """Unpacks codes that a folder keeps in another layout, in several tensors, or lays out the format's own blocks
    (rows, bytes a row); `data` are those of one of the tensors."""
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

    def columns(self, start: int, stop: int) -> StoredTensor:
        """Return columns `start` to `stop` of a matrix, copied. Raises LoadError where they cut a block or a group."""
        shape = (self.shape[0], stop - start)
        if self.read is not None:
            unpacked = self.unpacked()
            if unpacked.read is None:
                return unpacked.columns(start, stop)
            if unpacked.codes().groups is not None:
                return unpacked.in_order().columns(start, stop)
            codes = unpacked.codes().columns(self.name, start, stop)
            return replace(unpacked, shape=shape, read=lambda: codes, index=None)
        block, nbytes = self.format.block, self.format.block_nbytes
        if start % block or stop % block:
            raise LoadError(f"columns {start} to {stop} of '{self.name}' cut a block of {block}")
        data = self.data[:, start // block * nbytes : stop // block * nbytes]
        return replace(self, shape=shape, data=np.ascontiguousarray(data))

    def merged(self) -> StoredTensor:
        """Return the first two dimensions as one, a vector of a matrix: (E, N, K) as (E N, K)."""
        shape = (self.shape[0] * self.shape[1], *self.shape[2:])
        if self.read is not None:
            return replace(self, shape=shape)
        return replace(
            self, shape=shape, data=self.data.reshape(shape[0] if len(shape) > 1 else 1, -1)
        )

    def transposed(self) -> StoredTensor:
        """Return floating-point numbers (E, K, N) as (E, N, K), copied. Raises LoadError for codes."""
        if self.format.block != 1 or self.read is not None:
            raise LoadError(
                f"'{self.name}' is stored as {self.format.name}, and transposed: only floats can be so"
            )
        size = self.format.block_nbytes
        numbers = self.data.reshape(*self.shape, size).swapaxes(-2, -3)
        shape = numbers.shape[:-1]
        return replace(self, shape=shape, data=np.ascontiguousarray(numbers).reshape(shape[0], -1))

    def changed(self, change: Callable[[Floats], Floats]) -> StoredTensor:
        """Return what `change` makes of the numbers, as fp32."""
        return stored_floats(self.name, change(self.dequantize()))

    def flat(self) -> StoredTensor:
        """Return the numbers as one vector, fp32."""
        values = self.dequantize().reshape(1, -1)
        return StoredTensor(self.name, (values.size,), FORMATS["f32"], values.view(np.uint8))

    def codes(self) -> Codes:
        """Return the codes of a matrix; a vector is one row.

        Raises ValueError for floating-point numbers, LoadError for codes that are out of range.
        """
        if self.read is not None:
            read = self.read()
            return self._checked(read) if isinstance(read, Codes) else self._laid_out(read).codes()
        if self.format.group is None:
            raise ValueError(f"'{self.name}' is stored as {self.format.name}: it has no codes")
        return gguf_blocks.unpack(self.data, self.format)

    def dequantize(self) -> Floats:
        """Return the values, fp32, shape `shape`, in memory of their own."""
        stored = self.unpacked()
        if stored.read is not None or stored.format.group is not None:
            values = stored.codes().values()
        else:
            form = stored.format.name
            if form not in ("f32", "f16", "bf16"):
                raise LoadError(f"'{self.name}' is stored as {form}: its numbers must be floats")
            values = _floats(np.ascontiguousarray(stored.data), form)
        return values.reshape(self.shape)

    def unpacked(self) -> StoredTensor:
        """Return this tensor with codes in another layout unpacked once; in the format fp16, as that."""
        if self.read is None:
            return self
        read = self.read()
        if not isinstance(read, Codes):
            return self._laid_out(read)
        codes = self._checked(read)
        unpacked = replace(self, read=lambda: codes, index=None)
        return unpacked.in_order() if self.format.name == "f16" else unpacked

    def in_order(self) -> StoredTensor:
        """Return columns in another order as fp16 numbers, which have none."""
        codes = self.codes() if self.read is not None else None
        if codes is None or codes.groups is None:
            return self
        data = codes.values().astype(np.float16).view(np.uint8)
        return StoredTensor(self.name, self.shape, FORMATS["f16"], data)

    def _checked(self, codes: Codes) -> Codes:
        codes.check(self.name, self.format.bits)
        return codes if self.index is None else codes.rows(self.index)

    def _laid_out(self, blocks: Bytes) -> StoredTensor:
        data = blocks if self.index is None else blocks[self.index]
        return replace(self, data=data, read=None, index=None)

    def read_ahead(self) -> None:
        """Let the system read a mapped tensor from disk meanwhile."""
        if hasattr(mmap, "MADV_WILLNEED"):
            self._advise(mmap.MADV_WILLNEED)

    def release(self) -> None:
        """Give the memory of a mapped tensor back to the system; it can still be read, from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._advise(mmap.MADV_DONTNEED)

    def _advise(self, advice: int) -> None:
        owner: object = self.data
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
        if not isinstance(owner, mmap.mmap):
            return
        start = self.data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
        first = start - start % mmap.PAGESIZE
        owner.madvise(advice, first, start + self.nbytes - first)


def stored_floats(name: str, values: Floats) -> StoredTensor:
    """Return numbers as a tensor of a file, in fp32."""
    rows = np.ascontiguousarray(values, np.float32)
    rows = rows.reshape(len(values) if values.ndim > 1 else 1, -1)
    return StoredTensor(name, values.shape, FORMATS["f32"], rows.view(np.uint8))


def stacked(parts: Sequence[StoredTensor]) -> StoredTensor:
    """Return matrices of as many columns one below the other, or vectors one after the other, copied.

    Raises LoadError if they are stored in different formats.
    """
    first = parts[0]
    formats = {part.format.name for part in parts}
    if len(formats) > 1:
        raise LoadError(
            f"'{first.name}' and those like it are stored as {', '.join(sorted(formats))}: they must be alike"
        )
    if len(parts) == 1:
        return first
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    if any(part.read is not None for part in parts):
        return _stacked_codes([part.unpacked().in_order() for part in parts], shape)
    axis = 0 if len(shape) > 1 else 1
    return StoredTensor(
        first.name, shape, first.format, np.concatenate([part.data for part in parts], axis=axis)
    )


def _stacked_codes(parts: Sequence[StoredTensor], shape: tuple[int, ...]) -> StoredTensor:
    if parts[0].read is None:  # their columns had an order: they are fp16 now
        return stacked(parts)

    def read() -> Codes:
        codes = [part.codes() for part in parts]
        if any(part.flat is not None for part in codes):
            raise LoadError(f"'{parts[0].name}' is flattened: experts cannot be")

        def joined(name: str) -> Floats | None:
            values = [getattr(part, name) for part in codes]
            return None if values[0] is None else np.concatenate(values)

        scales = joined("scales")
        assert scales is not None
        return replace(
            codes[0],
            codes=np.concatenate([part.codes for part in codes]),
            scales=scales,
            mins=joined("mins"),
            zeros=joined("zeros"),
        )

    return StoredTensor(parts[0].name, shape, parts[0].format, parts[0].data, read)


def _floats(data: Bytes, format: str) -> NDArray[np.float32]:
    if format == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float16 if format == "f16" else np.float32).astype(np.float32)
