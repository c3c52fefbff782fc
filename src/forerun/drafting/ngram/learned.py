"""What was learned while a model ran, kept for the next process: a file a model of a live table, and one of a network.

Of a table, who keeps adds to the file what it learned since it kept last, under a lock, and puts the whole in its
place: processes that run at once lose nothing of each other's. Of a context that two have learned, the one that keeps
later is right.
Beyond the table's size those go first that were learned longest ago. No file that is missing, damaged or cannot
be written stops anything: a warning tells it once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from forerun.core import files
from forerun.core.errors import LoadError
from forerun.drafting.ngram.token_table import AnyLiveTable
from forerun.hub.names import cache_root, name_of

SUFFIX = ".learned"
MAP_SUFFIX = f".network{SUFFIX}"
EVERY_S = 300.0
"""How much of a server's time is lost if it is killed."""
_MAGIC = b"forerun learned tokens 1\n"
_LONGEST_HEAD = 1 << 16

_log = logging.getLogger(__name__)


class KeptFile:
    """Bytes that something learned of a model, checked when they are read; problems are told once and stop nothing."""

    def __init__(self, path: Path, origin: Mapping[str, str]) -> None:
        """`origin` says what they are of: a `model`, a `vocabulary`, and what else has to be the same."""
        self.path, self._origin = path, dict(origin)
        self._next_s = time.monotonic() + EVERY_S
        self._has_told = False

    @property
    def is_time(self) -> bool:
        """Whether a few minutes went by since it was written."""
        return time.monotonic() >= self._next_s

    def read(self) -> bytes:
        """What it holds, nothing if there is none. Raises OSError, ValueError."""
        with suppress(FileNotFoundError), files.open_to_read(self.path) as file:
            head, entries = _read_head(file), file.read()
            if head.get("checksum") != zlib.crc32(entries):
                raise ValueError("it is damaged")
            for key, word in (("vocabulary", "tokenizer"), ("network", "network")):
                if head.get(key) != self._origin.get(key):
                    raise ValueError(f"it was learned with another {word}")
            return entries
        return b""

    def write(self, entries: bytes) -> None:
        """Put them in the place of what is there. Raises OSError."""
        head = json.dumps(self._origin | {"checksum": zlib.crc32(entries)}).encode() + b"\n"
        files.replace(self.path, _MAGIC, head, entries, mode=0o600)  # it tells what was said

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For who writes: one at a time. A few minutes begin anew. Raises OSError."""
        self._next_s = time.monotonic() + EVERY_S
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(self.path.parent / ".lock"):
            yield

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """What fails inside is a warning, once."""
        try:
            yield
        except (OSError, ValueError) as error:
            if not self._has_told:
                _log.warning("what was learned in %s cannot be %s: %s", self.path, what, error)
            self._has_told = True


class Learned:
    """The file of a live table."""

    def __init__(
        self,
        model: Path,
        vocabulary: str,
        live: AnyLiveTable,
        new_table: Callable[[], AnyLiveTable],
        place: Path | None = None,
    ) -> None:
        """Take up what the file holds; `new_table` makes an empty table like `live`, `place` is another folder."""
        self.path = path_of(model, place)
        self._file = KeptFile(self.path, _origin(model, vocabulary))
        self._live, self._new_table = live, new_table
        with self._file.told("used"):
            live.absorb(self._file.read())
        self._kept_age = live.age

    def keep_in_time(self) -> None:
        """Keep what is new, every few minutes."""
        if self._file.is_time:
            self.keep()

    def keep(self) -> None:
        """Add to the file what was learned since."""
        age = self._live.age
        if age == self._kept_age:
            return
        with self._file.told("written"), self._file.locked():
            merged = self._new_table()
            with suppress(OSError, ValueError):
                merged.absorb(self._file.read())
            # Ages begin anew when their numbers run out.
            merged.absorb(self._live.entries(self._kept_age if self._kept_age < age else 0))
            self._file.write(merged.entries())
            self._kept_age = age


class LearnedMap:
    """The file of what a network that drafts has learned: a square matrix, fp16, and tokens, int32.

    Of processes that run at once the one that keeps last is right.
    """

    def __init__(
        self, model: Path, vocabulary: str, network: str, place: Path | None = None
    ) -> None:
        """`network` stands for the weights that the matrix goes with."""
        self.path = path_of(model, place, MAP_SUFFIX)
        self._file = KeptFile(self.path, _origin(model, vocabulary) | {"network": network})
        self._kept = 0

    @property
    def is_time(self) -> bool:
        """Whether a few minutes went by since it was kept."""
        return self._file.is_time

    def load(self, width: int, vocab_size: int) -> tuple[NDArray[np.float32], list[int]] | None:
        """The matrix (width, width) and the tokens; None if there are none, or they cannot be used."""
        with self._file.told("used"):
            held = self._file.read()
            if not held:
                return None
            num = 2 * width * width
            if len(held) < num or (len(held) - num) % 4:
                raise ValueError("it is damaged")
            matrix = np.frombuffer(held[:num], np.float16).reshape(width, width)
            tokens = np.frombuffer(held[num:], np.int32).tolist()
            if not np.isfinite(matrix).all() or not all(0 <= t < vocab_size for t in tokens):
                raise ValueError("it is damaged")
            return matrix.astype(np.float32), tokens
        return None

    def keep(self, matrix: NDArray[np.float32], tokens: Sequence[int], num_steps: int) -> None:
        """Write both, if there were steps since they were written."""
        if num_steps == self._kept:
            return
        with self._file.told("written"), self._file.locked():
            self._file.write(
                matrix.astype(np.float16).tobytes() + np.array(tokens, np.int32).tobytes()
            )
            self._kept = num_steps


@dataclass(frozen=True, slots=True)
class LearnedFile:
    """A file, and the model that it is of; None if that cannot be read."""

    path: Path
    nbytes: int
    model: Path | None


def folder() -> Path:
    """Where the files lie; it may not exist yet."""
    return cache_root() / "learned"


def path_of(model: Path, place: Path | None = None, suffix: str = SUFFIX) -> Path:
    """The file of a model, which is a GGUF file or a folder; in the cache, or another folder."""
    digest = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:16]
    return (place or folder()) / f"{name_of(model)}-{digest}{suffix}"


def _origin(model: Path, vocabulary: str) -> dict[str, str]:
    return {"model": str(model.resolve()), "vocabulary": vocabulary}


def entries() -> list[LearnedFile]:
    """All files. Raises LoadError."""
    try:
        return [
            LearnedFile(path, path.stat().st_size, _model_of(path))
            for path in sorted(folder().glob(f"*{SUFFIX}"))
        ]
    except OSError as error:
        raise LoadError(f"what was learned cannot be listed: {error}") from error


def remove(entries: Sequence[LearnedFile]) -> int:
    """Delete files; the bytes that were freed. What runs keeps only what it learns from now on. Raises LoadError."""
    try:
        for entry in entries:
            entry.path.unlink(missing_ok=True)
    except OSError as error:
        raise LoadError(f"what was learned cannot be deleted: {error}") from error
    return sum(entry.nbytes for entry in entries)


def _model_of(path: Path) -> Path | None:
    with suppress(OSError, ValueError, KeyError, TypeError), files.open_to_read(path) as file:
        return Path(_read_head(file)["model"])
    return None


def _read_head(file: BinaryIO) -> dict[str, Any]:
    """What a file says of itself, up to its entries. Raises ValueError."""
    if file.readline(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is not a file of this version")
    try:
        head = json.loads(file.readline(_LONGEST_HEAD))
    except RecursionError:
        head = None
    if not isinstance(head, dict):
        raise ValueError("it is damaged")
    return head
