"""Files: what users name is read; what processes share is written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, TextIO, cast

from forerun.core.errors import ConfigError
from forerun.core.paths import expanded
from forerun.system import processes

PRIVATE, PUBLIC = 0o600, 0o644
"""Who may read a file: what was said, or what was learned of it, its owner alone; models everybody."""


def replace(path: Path, *parts: bytes | memoryview, mode: int = PRIVATE) -> None:
    """Write a file in the place of what is there: who reads sees the old one or all of the new. Raises OSError.

    A folder that is not there is made, for its owner alone.
    """
    with replacing(path, mode) as file:
        for part in parts:
            file.write(part)


@contextmanager
def replacing(path: Path, mode: int = PRIVATE) -> Iterator[IO[bytes]]:
    """Open a file to write, which takes the place of what is there when the block ends well. Raises OSError."""
    from tempfile import NamedTemporaryFile  # which takes 6 ms to import

    make_folder(path.parent)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            os.chmod(file.name, mode)
            processes.put_in_place(file.file, file.name, path)
        except BaseException:
            file.close()
            os.unlink(file.name)
            raise


def open_private(path: Path, mode: str) -> TextIO:
    """Open a text to write (`w`, `a`), which only its owner may read if it is made. Raises OSError."""

    def made(name: str, flags: int) -> int:
        return os.open(name, flags, PRIVATE)

    return cast(TextIO, open(path, mode, encoding="utf-8", opener=made))


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, for its owner alone; what is there stays as it is. Raises OSError."""
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def regular(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files among some paths, with their state.

    What another process has deleted meanwhile, a loop of links, a folder or a pipe is passed over.
    """
    for path in paths:
        with suppress(OSError):
            state = path.stat()
            if stat.S_ISREG(state.st_mode):
                yield path, state


def delete(paths: Iterable[Path]) -> int:
    """Delete the files among some paths; return the bytes that were freed. Raises OSError."""
    freed = 0
    for path, state in regular(paths):
        path.unlink(missing_ok=True)
        freed += state.st_size
    return freed


def open_to_read(path: Path) -> BufferedReader:
    """Open a file; a named pipe, which would wait for its writer, is refused. Raises OSError."""
    fd = os.open(path, processes.READ_ONLY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is a pipe, a folder or a device, not a file", str(path))
    return os.fdopen(fd, "rb")


def read_text(file: str | Path) -> str:
    """Return the text of a UTF-8 file that a user named. Raises ConfigError that says why it cannot be read."""
    try:
        return expanded(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {file}") from None
    except IsADirectoryError:
        raise ConfigError(f"{file} is a folder, not a text file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
