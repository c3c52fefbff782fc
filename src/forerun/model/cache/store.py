"""Blocks of one model on disk: what they are named by, reading them, and writing them beside the passes.

A block is named by the chain of its tokens and all before, which begins with what the model computes from: weights as
packed, configuration, kind of keys and values, code. By the row law those decide on its bits, on every instruction set
and with any number of threads. No file that is missing, damaged or cannot be written stops anything.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.cache.folder import KV, MET, PromptFolder, touch
from forerun.system import background, files

VERSION = 2
"""Of the files, and of how keys and values lie in a block."""
HEAD = struct.Struct("<8sId20s")
"""Mark, CRC-32 of all behind it, seconds that reading a block's tokens took, key; then what lies in memory."""
_MARK = b"forerun" + bytes([VERSION])
SCAN_EVERY = 32
"""Files written between two looks at how much those of all processes take."""
STEP_NS = 1000
"""By how much a block counts as used earlier than the one before it."""
PAUSE_S = 60.0
"""Seconds without writing after the disk has refused it."""

Bytes = NDArray[np.uint8]
_WRITER = "forerun-prompts"
_log = logging.getLogger(__name__)


class StoredPart(NamedTuple):
    """Keys and values of a block, or the states behind it, as they lie in memory while `is_there` says so."""

    kind: str
    data: Bytes
    is_there: Callable[[], bool]


class StoredBlock(NamedTuple):
    """The tokens of a block, and what is to be kept of it."""

    tokens: tuple[int, ...]
    parts: Sequence[StoredPart]


class PromptStore:
    """The blocks of one model in a folder. One thread opens sequences and closes them; another writes."""

    def __init__(
        self, folder: PromptFolder, identity: Mapping[str, object], about: dict[str, str]
    ) -> None:
        """`identity` is all that decides on the bits of a block besides its tokens; `about` is for people."""
        text = json.dumps([VERSION, identity], sort_keys=True).encode()
        self.root = hashlib.blake2b(text, digest_size=20).digest()
        self.folder, self._about = folder, about
        self._path = folder.path / self.root.hex()
        self._queue: deque[Sequence[StoredBlock]] = deque()
        self._busy = threading.Lock()
        self._writer: threading.Thread | None = None
        self._met = set[bytes]()
        self._has_warned = False
        self._taken = 0
        self._num_written = 0
        self._resume_s = 0.0
        self._rows, self._seconds = 0.0, 0.0
        self._byte_s: float | None = None

    def chain(self, tokens: Sequence[int]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Yield the key and the tokens of each whole block of a text."""
        key = self.root
        for start in range(0, len(tokens) - BLOCK_ROWS + 1, BLOCK_ROWS):
            part = tuple(tokens[start : start + BLOCK_ROWS])
            key = hashlib.blake2b(key + array("q", part).tobytes(), digest_size=20).digest()
            yield key, part

    def learn(self, num_rows: int, seconds: float) -> None:
        """Note what a pass over a prompt took."""
        self._rows, self._seconds = 0.9 * self._rows + num_rows, 0.9 * self._seconds + seconds

    @property
    def block_s(self) -> float:
        """Seconds that reading the tokens of a block takes here; infinite while nothing was read."""
        return BLOCK_ROWS * self._seconds / self._rows if self._rows else float("inf")

    def has(self, key: bytes, kind: str = KV) -> bool:
        """Return whether there is a file, which may be damaged."""
        return self._file(key, kind).exists()

    def is_met_again(self, tokens: Sequence[int]) -> bool:
        """Return whether another process has met the beginning of so many whole blocks; else note that this one has."""
        *_, (key, _) = self.chain(tokens)
        path = self._file(key, MET)
        if key in self._met:
            return self.has(key)
        self._met.add(key)
        if path.exists():
            return True
        with suppress(OSError):
            self.folder.make_model(self._path.name, self._about)
            files.replace(path, b"")
        return False

    def read(self, key: bytes, data: Bytes, used_ns: int, kind: str = KV) -> bool:
        """Read a block into `data`; False, with anything in there, if that fails or computing it is faster.

        The later a block of a text, the longer ago it must be used: it is worth nothing without those before it.
        """
        path, begun_s = self._file(key, kind), time.perf_counter()
        try:
            with files.open_to_read(path) as file:
                head = file.read(HEAD.size)
                mark, crc, block_s, name = HEAD.unpack(head)
                if kind == KV and self._is_slow(data.nbytes, block_s):
                    return False
                is_complete = file.readinto(data.data) == data.nbytes and not file.read(1)
            if not is_complete or (mark, name) != (_MARK, key) or crc != _crc(kind, head, data):
                raise ValueError("it is damaged")
        except FileNotFoundError:
            return False
        except (OSError, ValueError, struct.error) as error:
            self._warn(f"{path} is read anew: {error}")
            with suppress(OSError):
                path.unlink()
            return False
        touch(path, used_ns)
        took_s = (time.perf_counter() - begun_s) / data.nbytes
        self._byte_s = took_s if self._byte_s is None else 0.7 * self._byte_s + 0.3 * took_s
        return True

    def keep(self, blocks: Sequence[StoredBlock]) -> None:
        """Write the blocks of a text, from its first on, as far as they are not there; beside what goes on."""
        if not blocks:
            return
        with self._busy:
            self._queue.append(blocks)
            if self._writer is None or not self._writer.is_alive():
                try:
                    self._writer = background.start(_WRITER, self._write_all)
                except RuntimeError:  # the interpreter ends
                    self._writer = None
                    self._queue.clear()

    def _is_slow(self, nbytes: int, block_s: float) -> bool:
        """Return whether the disk is slower than computing, which took `block_s` where the file was written."""
        computed_s = self.block_s if self._rows else block_s
        if self._byte_s is None or self._byte_s * nbytes <= computed_s:
            return False
        self._byte_s *= 0.9  # tried again after a while
        return True

    def _file(self, key: bytes, kind: str) -> Path:
        return self._path / f"{key.hex()}.{kind}"

    def _write_all(self) -> None:
        while True:
            with self._busy:
                if not self._queue:
                    self._writer = None
                    return
                blocks = self._queue.popleft()
            if time.monotonic() >= self._resume_s:
                try:
                    self._write(blocks)
                except (OSError, MemoryError) as error:
                    self._warn(f"prompts are not kept in {self.folder.path}: {error}")
                    self._resume_s = time.monotonic() + PAUSE_S

    def _write(self, blocks: Sequence[StoredBlock]) -> None:
        self.folder.make_model(self._path.name, self._about)
        tokens = [token for block in blocks for token in block.tokens]
        used_ns = time.time_ns()
        for (key, _), block in zip(self.chain(tokens), blocks, strict=True):
            for part in block.parts:
                if not self.has(key, part.kind):
                    data = part.data.copy()
                    if part.is_there():  # else it was overwritten meanwhile
                        self._write_part(key, part.kind, data)
                touch(self._file(key, part.kind), used_ns)
            used_ns -= STEP_NS

    def _write_part(self, key: bytes, kind: str, data: Bytes) -> None:
        nbytes, limit = HEAD.size + data.nbytes, self.folder.limit_nbytes
        if nbytes > limit:
            return
        if self._num_written % SCAN_EVERY == 0 or self._taken + nbytes > limit:
            self._taken = self.folder.make_room(nbytes)
        crc = _crc(kind, HEAD.pack(_MARK, 0, self.block_s, key), data)
        head = HEAD.pack(_MARK, crc, self.block_s, key)
        files.replace(self._file(key, kind), head, data.data)
        self._taken += nbytes
        self._num_written += 1

    def _warn(self, message: str) -> None:
        """Log the first problem."""
        if not self._has_warned:
            _log.warning("prompt cache: %s (logged once)", message)
        self._has_warned = True


def finish_writing(timeout_s: float | None = None) -> bool:
    """Wait until the blocks of all stores are written, at most so long; False if they are not.

    A process that ends by itself waits, too.
    """
    return background.join(_WRITER, timeout_s)


def _crc(kind: str, head: bytes, data: Bytes) -> int:
    """Return the checksum of the kind of file, and of all behind it."""
    return zlib.crc32(data.data, zlib.crc32(kind.encode() + head[len(_MARK) + 4 :]))
