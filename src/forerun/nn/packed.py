"""Packed weights on disk, so that a model is packed once and the next start only reads.

A file a model and way of rounding. Its header says of which state of the model's files, and by which
code, it was made: what does not fit is packed again and written over. The weights are read, not mapped:
the kernels stream them from huge pages, which a file cannot give. Nothing here can fail a start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError
from forerun.formats.hub import cache_root

LEAST_NBYTES = 16 << 20
"""A smaller model is packed so fast that it needs no file."""

_MAGIC = b"forerun packed weights\n"
_CHUNK = 4 << 20
_LEFTOVER_S = 3600  # what starts that were killed while they wrote have left is deleted then
_SUFFIX = ".packed"

_log = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]


PackedWeight = tuple[str, str | None, tuple[int, ...], list[Bytes]]
"""A weight as it lies in memory: name, format (None for a norm), shape, bytes, its bias's last."""


class PackedWeights(Protocol):
    """A model whose weights are written or read here; implemented by `backends.native.NativeDecoder`."""

    @property
    def num_threads(self) -> int:
        """Threads that may read at a time."""
        ...

    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        ...

    def packed(self) -> Iterator[PackedWeight]:
        """All weights as they lie in memory."""
        ...

    def add_blank(
        self, name: str, form: str | None, shape: Sequence[int], has_bias: bool
    ) -> list[Bytes]:
        """Make room for a weight; the bytes to fill, its bias's last. Raises ValueError."""
        ...

    def check(self) -> None:
        """Raise ValueError, naming it, for a weight whose shape does not fit the others."""
        ...


def packed_dir() -> Path:
    """The folder of the packed weights; it may not exist yet."""
    return cache_root() / "packed"


def packed_files() -> list[Path]:
    """What lies in it, files that an interrupted start left behind included."""
    return sorted(packed_dir().glob(f"*{_SUFFIX}*"))


def clear() -> int:
    """Delete it all; the bytes that were freed. Models that are running keep their weights. Raises LoadError."""
    freed = 0
    try:
        for path in packed_files():
            freed += path.stat().st_size
            path.unlink()
    except OSError as error:
        raise LoadError(f"packed weights cannot be deleted: {error}") from error
    return freed


@dataclass(frozen=True, slots=True)
class PackedFile:
    """Where the packed weights of a model lie, and what they must have been made of."""

    path: Path
    key: Mapping[str, object]

    @classmethod
    def of(cls, model: Path, **rounding: str | int | None) -> PackedFile:
        """For a GGUF file or a folder, and the options that decide on its weights."""
        model = model.resolve()
        parts = [model]
        if model.is_dir():
            parts = [model / "config.json", *sorted(model.glob("*.safetensors"))]
        states = [(path, path.stat()) for path in parts if path.is_file()]
        name = json.dumps([str(model), rounding])
        key = {
            "model": str(model),
            "files": [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in states],
            "rounding": rounding,
            "code": _code_digest(),
        }
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return cls(packed_dir() / f"{model.stem}-{digest}{_SUFFIX}", key)

    def load(self, decoder: PackedWeights) -> bool:
        """Give the decoder all its weights; False, with some of them set or none, if the file does not serve."""
        try:
            with self.path.open("rb") as file:
                self._read(file, decoder)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, MemoryError) as error:
            _log.info("packing again, because %s does not serve: %s", self.path, error)
            return False
        return True

    def save(self, decoder: PackedWeights) -> None:
        """Write the decoder's weights, unless they would take more than half of what the disk has left."""
        nbytes = decoder.nbytes()
        if nbytes < LEAST_NBYTES:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path in self.path.parent.glob(f"{self.path.name}.*"):
                if time.time() - path.stat().st_mtime > _LEFTOVER_S:
                    path.unlink(missing_ok=True)
            if 2 * nbytes > shutil.disk_usage(self.path.parent).free:
                raise OSError("the disk is nearly full")
            self._replace(decoder)
        except OSError as error:
            _log.info(
                "the next start will pack again, because %s cannot be written: %s", self.path, error
            )

    def _read(self, file: BinaryIO, decoder: PackedWeights) -> None:
        header = _read_header(file)
        if header["key"] != self.key:
            raise ValueError("it was made of other files or by other code")
        start, fd = file.tell(), file.fileno()
        if os.fstat(fd).st_size != start + header["nbytes"]:
            raise ValueError("it is not whole")
        places = []
        for weight in header["weights"]:
            places += decoder.add_blank(*weight)

        def read(place: tuple[Bytes, int]) -> int:
            data, offset = place
            if os.preadv(fd, [data.data], start + offset) != len(data):
                raise ValueError("it is not whole")
            return _checksum(data)

        with ThreadPoolExecutor(decoder.num_threads) as pool:
            checksum = sum(pool.map(read, _chunks(places))) % 2**64
        if checksum != header["checksum"]:
            raise ValueError("its bytes have changed")
        decoder.check()

    def _replace(self, decoder: PackedWeights) -> None:
        """Write beside the file, then take its place: whoever reads meanwhile reads a whole one."""
        weights = list(decoder.packed())
        arrays = [array for *_, arrays in weights for array in arrays]
        header = {
            "key": self.key,
            "weights": [(name, form, shape, len(a) == 2) for name, form, shape, a in weights],
            "nbytes": sum(array.nbytes for array in arrays),
            "checksum": sum(map(_checksum, arrays)) % 2**64,
        }
        text = json.dumps(header).encode() + b"\n"
        with tempfile.NamedTemporaryFile(
            dir=self.path.parent, prefix=f"{self.path.name}.", delete=False
        ) as file:
            try:
                file.write(_MAGIC + b"%d " % zlib.crc32(text) + text)
                for array in arrays:
                    file.write(array.data)
                file.flush()
                os.replace(file.name, self.path)
            except BaseException:
                os.unlink(file.name)
                raise


def _read_header(file: BinaryIO) -> dict:
    """The header; the file stands at the first weight then. Raises ValueError."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it holds something else")
    crc, _, text = file.readline().partition(b" ")
    if crc != b"%d" % zlib.crc32(text):
        raise ValueError("its header has changed")
    header: dict = json.loads(text)
    return header


def _chunks(arrays: list[Bytes]) -> Iterator[tuple[Bytes, int]]:
    """Pieces of the arrays, and where each lies behind the header."""
    offset = 0
    for array in arrays:
        for first in range(0, len(array), _CHUNK):
            yield array[first : first + _CHUNK], offset + first
        offset += len(array)


def _checksum(data: Bytes) -> int:
    """The sum of the 8-byte words modulo 2^64: as fast as memory, so that every start can afford it."""
    return int(np.add.reduce(data.view(np.uint64)))


def _code_digest() -> str:
    """Of the code that reads, rounds and packs: a file that other code has written is not used."""
    from forerun import _native

    package = Path(__file__).parents[1]
    sources = [p for part in ("formats", "quant", "nn") for p in (package / part).rglob("*.py")]
    digest = hashlib.sha256()
    for path in [Path(_native.__file__), *sorted(sources)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
