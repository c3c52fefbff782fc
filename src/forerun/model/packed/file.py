"""Packed weights on disk, so that a model is packed once and the next start only reads.

A file a model and way of rounding. Its header says of which state of the model's files, and by which
code, it was made: what does not fit is packed again and written over. A start maps the file and computes out of it at
once; meanwhile the weights move into huge pages, which the kernels stream fastest, unless processes shall share them.
No file that is missing, damaged or cannot be written fails a start. How much the files may take together is up to
`folder.py`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np

from forerun.core import background
from forerun.core.files import open_to_read
from forerun.core.opened import OpenedFile
from forerun.model.packed.folder import SUFFIX, PackedFolder, default_folder
from forerun.model.packed.layout import (
    Bytes,
    checksum,
    chunks,
    first_weight,
    header_bytes,
    in_huge_pages,
    read_header,
)

if TYPE_CHECKING:
    from forerun.model.config import ModelConfig
    from forerun.weights.stored import StoredTensor

_WRITER = "forerun-packed-copy"
MIN_NBYTES = 16 << 20
"""A smaller model is packed so fast that it needs no file."""

_log = logging.getLogger(__name__)

PackedWeight = tuple[str, str | None, tuple[int, ...], list[Bytes]]
"""A weight as it lies in memory: name, format (None for a norm), shape, bytes, its bias's last."""


class PackedArrays(Protocol):
    """Weights that are packed, written or read; implemented by `drafting.networks.packed.NetworkWeights`."""

    @property
    def num_threads(self) -> int:
        """Threads that may read at a time."""
        ...

    def nbytes(self) -> int:
        """Return the bytes of the packed weights."""
        ...

    def packed(self) -> Iterator[PackedWeight]:
        """Return all weights as they lie in memory."""
        ...

    def add_in_place(
        self, name: str, form: str | None, shape: Sequence[int], has_bias: bool, data: Bytes
    ) -> list[int]:
        """Take a weight, its bias behind it, as it lies at the beginning of `data`; return the bytes of each.

        A matrix may stay where it lies, which is only read; what is small is copied. Raises ValueError.
        """
        ...

    def check(self) -> None:
        """Raise ValueError, naming it, for a weight whose shape does not fit the others."""
        ...


class PackedWeights(PackedArrays, Protocol):
    """Those of a model; implemented by `backends.native.NativeDecoder`."""

    config: ModelConfig
    digest: str
    """Of the weights as they are packed, where it is known."""

    def add(self, name: str, stored: StoredTensor, bias: StoredTensor | None) -> None:
        """Pack one weight. Raises LoadError for a shape or a format that has no kernel."""
        ...

    def add_blank(
        self,
        name: str,
        form: str | None,
        shape: Sequence[int],
        has_bias: bool,
        is_apart: bool = False,
    ) -> list[Bytes]:
        """Make room for a weight; return the bytes to fill, its bias's last. Raises ValueError."""
        ...

    def move_to_memory(self, name: str) -> None:
        """Copy a weight that is mapped into huge pages, while the decoder is used; nothing for one that is not."""
        ...


def digest(decoder: PackedArrays) -> str:
    """Hash the weights as they lie: equal ones compute the same, whatever they were read from."""
    weights = sorted(decoder.packed(), key=lambda weight: weight[0])
    total = hashlib.sha256(repr([weight[:3] for weight in weights]).encode())
    arrays = [array for *_, arrays in weights for array in arrays]
    for chunk in chunks(arrays):  # on one thread: at the end of a program there is no pool for it
        total.update(hashlib.sha256(chunk.data).digest())
    return total.hexdigest()


def finish_writing() -> None:
    """Wait for the copies that are being written: their decoders' memory is not freed before."""
    background.join(_WRITER)


@dataclass(frozen=True, slots=True)
class PackedFile:
    """Where the packed weights of a model lie, and what they must have been made of."""

    folder: PackedFolder
    name: str
    key: Mapping[str, object]
    min_nbytes: int
    """Fewer bytes of weights are not stored."""
    is_mapped: bool = False
    """Whether decoders compute out of the file itself, whose pages all processes share."""

    @classmethod
    def of(
        cls,
        model: Path,
        opened: Sequence[OpenedFile],
        *,
        is_mapped: bool = False,
        **rounding: str | int | None,
    ) -> PackedFile:
        """Name the file of a GGUF file or a folder, by the options that decide on its weights. Raises ConfigError.

        It holds while the model's files are as its reader `opened` them.
        """
        model = model.resolve()
        digest = hashlib.sha256(json.dumps([str(model), rounding]).encode()).hexdigest()[:16]
        return cls(
            default_folder(),
            f"{model.stem}-{digest}{SUFFIX}",
            _key(model, opened, rounding),
            MIN_NBYTES,
            is_mapped,
        )

    @classmethod
    def beside(
        cls, model: Path, opened: Sequence[OpenedFile], name: str, others: Sequence[OpenedFile]
    ) -> PackedFile:
        """Name the file in which something made of a model and of other files is kept. Raises ConfigError."""
        return replace(cls.of(model, [*opened, *others], beside=name), min_nbytes=0)

    @property
    def path(self) -> Path:
        """Where the file lies; it may not exist."""
        return self.folder.path / self.name

    def load(self, decoder: PackedArrays) -> str:
        """Give the decoder its weights and return their digest; empty, with some set or none, if it cannot be used."""
        try:
            with open_to_read(self.path) as file:
                digest = self._read(file, decoder)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, MemoryError) as error:
            _log.info("packing again, because %s does not serve: %s", self.path, error)
            return ""
        self.folder.touch(self.path)
        return digest

    def save(self, decoder: PackedArrays) -> None:
        """Write the decoder's weights, where there is room for them; those that are mapped take their place."""
        if decoder.nbytes() < self.min_nbytes or not self.folder.limit_nbytes:
            return
        try:
            self._write(decoder)
        except OSError as error:
            _log.warning("packed weights are not kept, the next start packs again: %s", error)
            return
        if self.is_mapped:
            self.load(decoder)

    def save_meanwhile(self, decoder: PackedArrays) -> None:
        """Save while the decoder is used, which changes none of its weights; a process that ends waits for it."""
        if self.is_mapped:
            self.save(decoder)  # the decoder shall compute out of the file
        else:
            background.start(_WRITER, lambda: self.save(decoder))

    def _read(self, file: BinaryIO, decoder: PackedArrays) -> str:
        header = read_header(file)
        if header["key"] != self.key:
            raise ValueError("it was made of other files or by other code")
        start = first_weight(file)
        if os.fstat(file.fileno()).st_size != start + header["nbytes"]:
            raise ValueError("it is not whole")
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[start:]
        arrays = list[Bytes]()
        for name, form, shape, has_bias in header["weights"]:
            for nbytes in decoder.add_in_place(name, form, shape, has_bias, data):
                arrays.append(data[:nbytes])
                data = data[nbytes:]
        with ThreadPoolExecutor(decoder.num_threads) as pool:
            actual = sum(pool.map(checksum, chunks(arrays))) % 2**64
        if actual != header["checksum"]:
            raise ValueError("its bytes have changed")
        decoder.check()
        return str(header["digest"])

    def _write(self, decoder: PackedArrays) -> None:
        weights = sorted(decoder.packed(), key=_is_norm)  # matrices are multiples of 64 bytes
        arrays = [array for *_, arrays in weights for array in arrays]
        header = {
            "key": self.key,
            "weights": [(name, form, shape, len(a) == 2) for name, form, shape, a in weights],
            "nbytes": sum(array.nbytes for array in arrays),
            "checksum": sum(map(checksum, arrays)) % 2**64,
            "digest": digest(decoder),
        }
        start = header_bytes(header)
        nbytes = len(start) + sum(array.nbytes for array in arrays)
        with self.folder.replacing(self.path, nbytes) as file:
            for piece in in_huge_pages([memoryview(start), *(array.data for array in arrays)]):
                file.write(piece)


def _key(
    model: Path, opened: Sequence[OpenedFile], rounding: Mapping[str, object]
) -> dict[str, object]:
    """Return everything that the packed weights of a resolved path depend on, as JSON has it."""
    files = [[path, *state] for path, state in opened]
    return {"model": str(model), "files": files, "rounding": rounding, "code": code_digest()}


def _is_norm(weight: PackedWeight) -> bool:
    return weight[1] is None


@cache
def code_digest() -> str:
    """Hash the code that reads, rounds and packs: a file that other code has written is not used."""
    from forerun import _native

    package = Path(__file__).parents[2]
    parts = ("weights", "model", "drafters", "drafting/networks")  # those of `beside`, too
    sources = [p for part in parts for p in (package / part).rglob("*.py")]
    digest = hashlib.sha256()
    for path in [Path(_native.__file__), *sorted(sources)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
