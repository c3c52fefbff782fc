"""Which files a reader has opened, and in which state: what was made of them holds while they are in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from forerun.core.errors import LoadError
from forerun.system.files import open_to_read

SAMPLE_NBYTES = 1 << 20
"""Bytes of the beginning and the end of each file that `digest` reads."""
_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that stands for one that git-lfs keeps elsewhere."""


class OpenedFile(NamedTuple):
    """A file by its path, links resolved, as it was when it was opened; without a state, none was there."""

    path: str
    state: tuple[int, ...] = ()
    """Size, times of change of contents and of the file in ns, inode."""

    @classmethod
    def now(cls, path: str | Path) -> OpenedFile:
        """Return a file as it is now. Raises OSError, but not where there is none."""
        path = Path(path).resolve()
        try:
            return cls(str(path), _state(path.stat()))
        except FileNotFoundError:
            return cls(str(path))


def open_noted(path: Path, opened: list[OpenedFile]) -> BinaryIO:
    """Open a file to read, and add it to those that were; also where there is none.

    Raises OSError, and LoadError for a pointer of git-lfs, which a clone without it leaves in place of large files.
    """
    where = str(path.resolve())
    try:
        file = open_to_read(path)
    except FileNotFoundError:
        opened.append(OpenedFile(where))
        raise
    opened.append(OpenedFile(where, _state(os.fstat(file.fileno()))))
    if file.read(len(_POINTER)) == _POINTER:
        file.close()
        raise LoadError(
            f"{path.name} is a git-lfs pointer, not the file itself: run `git lfs pull` in {path.parent}"
        )
    file.seek(0)
    return file


def read_file(path: Path, opened: list[OpenedFile] | None = None) -> bytes:
    """Return a file's content; raises and adds to those that were `opened` as `open_noted` does."""
    with open_noted(path, [] if opened is None else opened) as file:
        return file.read()


def read_json(path: Path, opened: list[OpenedFile] | None = None) -> dict[str, Any]:
    """Return a JSON object from a file, empty if there is no file. Raises LoadError if it is not one.

    The file is added to those that were `opened`.
    """
    try:
        value = json.loads(read_file(path, opened).decode())
    except FileNotFoundError:
        return {}
    except RecursionError as error:
        raise LoadError(f"{path} is nested too deep to be read") from error
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path} is not a JSON object, but a {type(value).__name__}")
    return value


def digest(opened: Iterable[OpenedFile]) -> str:
    """Hash files by their sizes, beginnings and ends, so that it is the same on every machine. Raises OSError."""
    total = blake2b(digest_size=8)
    for path in (each.path for each in opened if each.state):
        with open_to_read(Path(path)) as file:
            size = os.fstat(file.fileno()).st_size
            total.update(f"{size}:".encode() + file.read(SAMPLE_NBYTES))
            file.seek(max(0, size - SAMPLE_NBYTES))
            total.update(file.read())
    return total.hexdigest()


def _state(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
