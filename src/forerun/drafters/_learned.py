"""What was learned while a model ran, kept for the next process: a file a model, of the entries of a live table.

Who keeps adds to the file what it learned since it kept last, under a lock, and puts the whole in its place: processes
that run at once lose nothing of each other's. Of a context that two have learned, the one that keeps later is right.
Beyond the table's size those go first that were learned longest ago. No file that is missing, damaged or cannot
be written stops anything: a warning tells it once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from forerun.core import files
from forerun.core.errors import LoadError
from forerun.drafters._token_table import AnyLiveTable
from forerun.formats.hub import cache_root, name_of

SUFFIX = ".learned"
EVERY_S = 300.0
"""How much of a server's time is lost if it is killed."""
_MAGIC = b"forerun learned tokens 1\n"
_LONGEST_HEAD = 1 << 16

_log = logging.getLogger(__name__)


class Learned:
    """The file of a live table."""

    def __init__(
        self,
        model: Path,
        vocabulary: str,
        live: AnyLiveTable,
        new_table: Callable[[], AnyLiveTable],
    ) -> None:
        """Take up what the file holds; `new_table` makes an empty table like `live`."""
        self.path = path_of(model)
        self._origin = {"model": str(model.resolve()), "vocabulary": vocabulary}
        self._live, self._new_table = live, new_table
        self._has_told = False
        with self._told("used"):
            live.absorb(self._read())
        self._kept_age, self._next_s = live.age, time.monotonic() + EVERY_S

    def keep_in_time(self) -> None:
        """Keep what is new, every few minutes."""
        if time.monotonic() >= self._next_s:
            self.keep()

    def keep(self) -> None:
        """Add to the file what was learned since."""
        self._next_s = time.monotonic() + EVERY_S
        age = self._live.age
        if age == self._kept_age:
            return
        with self._told("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with files.locked(self.path.parent / ".lock"):
                merged = self._new_table()
                with suppress(OSError, ValueError):
                    merged.absorb(self._read())
                # Ages begin anew when their numbers run out.
                merged.absorb(self._live.entries(self._kept_age if self._kept_age < age else 0))
                self._write(merged.entries())
            self._kept_age = age

    def _read(self) -> bytes:
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            head, entries = _read_head(file), file.read()
            if head.get("checksum") != zlib.crc32(entries):
                raise ValueError("it is damaged")
            if head.get("vocabulary") != self._origin["vocabulary"]:
                raise ValueError("it was learned with another tokenizer")
            return entries
        return b""

    def _write(self, entries: bytes) -> None:
        head = json.dumps(self._origin | {"checksum": zlib.crc32(entries)}).encode() + b"\n"
        files.replace(self.path, _MAGIC, head, entries, mode=0o600)  # it tells what was said

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if not self._has_told:
                _log.warning("what was learned in %s cannot be %s: %s", self.path, what, error)
            self._has_told = True


@dataclass(frozen=True, slots=True)
class LearnedFile:
    """A file, and the model that it is of; None if that cannot be read."""

    path: Path
    nbytes: int
    model: Path | None


def folder() -> Path:
    """Where the files lie; it may not exist yet."""
    return cache_root() / "learned"


def path_of(model: Path) -> Path:
    """The file of a model, which is a GGUF file or a folder."""
    digest = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:16]
    return folder() / f"{name_of(model)}-{digest}{SUFFIX}"


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
    with suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as file:
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
