"""Files in which drafters keep what they learned of a model for the next process: where they lie, reading, writing.

A file that is missing, damaged or cannot be written stops nothing: it is logged once, as a warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from forerun.core import files
from forerun.core.errors import LoadError
from forerun.hub.names import cache_root, name_of

SUFFIX = ".learned"
EVERY_S = 300.0
"""Between two writes: what a server that is killed has learned since is lost."""
_MAGIC = b"forerun learned tokens 1\n"
_LONGEST_HEAD = 1 << 16

_log = logging.getLogger(__name__)


class LearnedStore:
    """A file of what was learned of a model, checked when it is read; only the first problem is logged."""

    def __init__(self, path: Path, origin: Mapping[str, str]) -> None:
        """Name the file; `origin` is the `model` and the `vocabulary` it belongs to, of `origin_of`."""
        self.path, self._origin = path, dict(origin)
        self._next_s = time.monotonic() + EVERY_S
        self._has_warned = False

    @property
    def is_due(self) -> bool:
        """Say whether a few minutes went by since it was written."""
        return time.monotonic() >= self._next_s

    def read(self) -> bytes:
        """Read the entries, none if there is no file. Raises OSError, ValueError."""
        with suppress(FileNotFoundError), files.open_to_read(self.path) as file:
            head, entries = _read_head(file), file.read()
            if head.get("checksum") != zlib.crc32(entries):
                raise ValueError("it is damaged")
            if head.get("vocabulary") != self._origin["vocabulary"]:
                raise ValueError("it was learned with another tokenizer")
            return entries
        return b""

    def write(self, entries: bytes) -> None:
        """Replace the file. Raises OSError."""
        head = json.dumps(self._origin | {"checksum": zlib.crc32(entries)}).encode() + b"\n"
        files.replace(self.path, _MAGIC, head, entries, mode=0o600)  # it reveals what users wrote

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process write at a time, and start the wait for `is_due` again. Raises OSError."""
        self._next_s = time.monotonic() + EVERY_S
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(self.path.parent / ".lock"):
            yield

    @contextmanager
    def warned(self, what: str) -> Iterator[None]:
        """Log the first error inside as a warning, and go on."""
        try:
            yield
        except (OSError, ValueError) as error:
            if not self._has_warned:
                _log.warning("what was learned in %s cannot be %s: %s", self.path, what, error)
            self._has_warned = True


@dataclass(frozen=True, slots=True)
class LearnedFile:
    """A file, and the model that it is of; None if that cannot be read."""

    path: Path
    nbytes: int
    model: Path | None


def folder() -> Path:
    """Return the folder of the files; it may not exist yet."""
    return cache_root() / "learned"


def path_of(model: Path, directory: Path | None = None) -> Path:
    """Return the file of a model, which is a GGUF file or a folder; in the cache, or another folder."""
    digest = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:16]
    return (directory or folder()) / f"{name_of(model)}-{digest}{SUFFIX}"


def origin_of(model: Path, vocabulary: str) -> dict[str, str]:
    """Describe the model and the tokenizer that a file belongs to."""
    return {"model": str(model.resolve()), "vocabulary": vocabulary}


def entries() -> list[LearnedFile]:
    """List all files. Raises LoadError."""
    try:
        return [
            LearnedFile(path, stat.st_size, _model_of(path))
            for path, stat in files.regular(sorted(folder().glob(f"*{SUFFIX}")))
        ]
    except OSError as error:
        raise LoadError(f"what was learned cannot be listed: {error}") from error


def remove(entries: Sequence[LearnedFile]) -> int:
    """Delete files, return the bytes freed; processes that run keep what they learn later. Raises LoadError."""
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
    """Read the header of a file, up to its entries. Raises ValueError."""
    if file.readline(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is not a file of this version")
    try:
        head = json.loads(file.readline(_LONGEST_HEAD))
    except RecursionError:
        head = None
    if not isinstance(head, dict):
        raise ValueError("it is damaged")
    return head
