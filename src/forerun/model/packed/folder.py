"""The folder of packed weights, whose files take no more than a limit: those used longest ago go first.

It knows names, sizes and times, not what is in the files. A file is used when it is read (`touch`). One that is being
written has its full size from the start and is locked, so that several starts at once keep the limit together; what a
killed start has left is not locked any more and goes. Deleting disturbs no one who is reading: the data stay
until the reader closes them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from forerun.core import files, sizes, system
from forerun.core.errors import ConfigError, LoadError
from forerun.hub.names import cache_root
from forerun.model.packed.layout import read_header

SUFFIX = ".packed"
LIMIT_NBYTES = 5_000_000_000
"""What the packed weights of all models may take, unless FORERUN_CACHE_LIMIT says otherwise."""


@dataclass(frozen=True, slots=True)
class PackedCopy:
    """A file of the folder, and whether it is complete, or being written (or was when its process ended)."""

    path: Path
    nbytes: int
    used_ns: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """A folder, which may not exist yet, and how many bytes its files may take."""

    path: Path
    limit_nbytes: int

    def entries(self) -> list[PackedCopy]:
        """List its files, the one used longest ago first. Raises OSError."""
        copies = [
            PackedCopy(path, stat.st_size, stat.st_mtime_ns, path.suffix == SUFFIX)
            for path, stat in files.regular(self.path.glob(f"*{SUFFIX}*"))
        ]
        return sorted(copies, key=lambda entry: (entry.used_ns, entry.path.name))

    def touch(self, path: Path) -> None:
        """Note that a file is used now; where that cannot be written, it counts as used when it was written."""
        with suppress(OSError):
            os.utime(path)

    def remove(self, paths: Sequence[Path]) -> int:
        """Delete files, and what killed starts have left; return the bytes that were freed. Raises OSError."""
        if not self.path.is_dir():
            return 0
        with files.locked(self.path / ".lock"):
            leftovers = [e for e in self.entries() if not e.is_complete and not _is_locked(e.path)]
            return _delete([e for e in self.entries() if e.path in paths or e in leftovers])

    @contextmanager
    def replacing(self, target: Path, nbytes: int) -> Iterator[IO[bytes]]:
        """Open a file to write `nbytes` to, which takes the target's place at the end: readers see a complete one.

        As far as needed, files go before that were used longest ago. Raises OSError, with nothing deleted for it, if
        there is no room.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with files.locked(self.path / ".lock"):
                self._evict(nbytes)
                file = stack.enter_context(
                    tempfile.NamedTemporaryFile(
                        dir=self.path, prefix=f"{target.name}.", delete=False
                    )
                )
                stack.callback(Path(file.name).unlink, missing_ok=True)
                system.try_lock(file.fileno())
                os.truncate(file.fileno(), nbytes)
            yield file.file
            file.flush()
            system.put_in_place(file.file, file.name, target)

    def _evict(self, nbytes: int) -> None:
        entries = self.entries()
        useless = [e for e in entries if not e.is_complete and not _is_locked(e.path)]
        writing = [e for e in entries if not e.is_complete and e not in useless]
        rest = [e for e in entries if e.is_complete]
        over = nbytes + sum(e.nbytes for e in (*writing, *rest)) - self.limit_nbytes
        evicted = []
        while over > 0 and rest:
            evicted.append(rest.pop(0))
            over -= evicted[-1].nbytes
        going = [*useless, *evicted]
        free = shutil.disk_usage(self.path).free + sum(e.nbytes for e in going)
        if over > 0:
            taken = sum(e.nbytes for e in writing)
            others = f", and other starts are writing {sizes.format_size(taken)}" if taken else ""
            raise OSError(
                f"{sizes.format_size(nbytes)} are needed, but the limit is "
                f"{sizes.format_size(self.limit_nbytes)} (FORERUN_CACHE_LIMIT){others}"
            )
        if 2 * nbytes > free:
            raise OSError(f"{sizes.format_size(nbytes)} are needed, but the disk is nearly full")
        _delete(going)


def default_folder() -> PackedFolder:
    """Return where packed weights lie. Raises ConfigError if the limit is not a size."""
    try:
        limit = sizes.parse(os.environ.get("FORERUN_CACHE_LIMIT") or str(LIMIT_NBYTES))
    except ValueError as error:
        raise ConfigError(f"FORERUN_CACHE_LIMIT: {error}") from error
    return PackedFolder(cache_root() / "packed", limit)


def copies() -> list[tuple[PackedCopy, Path | None]]:
    """Return the files of packed weights, each with its model, None if that cannot be read. Raises LoadError."""
    try:
        entries = default_folder().entries()
    except OSError as error:
        raise LoadError(f"packed weights cannot be listed: {error}") from error
    return [(entry, _model_of(entry.path)) for entry in entries]


def of_model(model: Path) -> list[PackedCopy]:
    """Return the packed copies of a GGUF file or a folder. Raises LoadError."""
    model = model.resolve()
    return [entry for entry, of in copies() if of == model]


def remove(entries: Iterable[PackedCopy]) -> int:
    """Delete packed copies; return the bytes that were freed. Models that are running keep theirs. Raises LoadError."""
    try:
        return default_folder().remove([entry.path for entry in entries])
    except OSError as error:
        raise LoadError(f"packed weights cannot be deleted: {error}") from error


def _delete(entries: Sequence[PackedCopy]) -> int:
    freed = 0
    for entry in entries:
        entry.path.unlink(missing_ok=True)
        freed += entry.nbytes
    return freed


def _is_locked(path: Path) -> bool:
    """Return whether someone is writing the file."""
    with suppress(FileNotFoundError), files.open_to_read(path) as file:
        return not system.try_lock(file.fileno())
    return False


def _model_of(path: Path) -> Path | None:
    try:
        with files.open_to_read(path) as file:
            return Path(read_header(file)["key"]["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
