"""The folder of stored prompts: a file a block, no more bytes than a limit, those used longest ago go first.

    DIR/<digest of the model>/model.json     what it is called
    DIR/<digest of the model>/<key>.kv       a block of keys and values
    DIR/<digest of the model>/<key>.state    the recurrent states behind it
    DIR/<digest of the model>/<key>.met      nothing: a process has met this beginning once

The file system is the index. A block has one or two megabytes, beside which a file costs nothing: it appears whole
(`rename`), is found by its name, tells its size and when it was used, and its room is free as soon as it is deleted. So
there is nothing that a killed process leaves half done but a file under another name, no index that may contradict the
files, and no lock: processes that share a folder may write, read and delete as they like.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forerun.hub.names import cache_root
from forerun.system import files, processes

KV, STATE, MET = "kv", "state", "met"
ABANDONED_S = 60.0
"""The age of a file that a process has begun to write, and will not end."""
SLACK = 0.05
"""Share of the limit that is freed besides what is needed, so that not every block has to look for the oldest."""
_FILE = re.compile(rf"(\.?)([0-9a-f]{{40}})\.({KV}|{STATE}|{MET})(\..*)?")
_MODEL = re.compile(r"[0-9a-f]{40}")
_ABOUT = "model.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a block or of a state, and whether it is complete, or being written (or was when its process ended)."""

    path: Path
    kind: str
    nbytes: int
    used_ns: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The blocks of one model in a folder. `used_s` is when some of it was used last, in seconds since 1970."""

    name: str
    kv: str
    blocks: int
    nbytes: int
    used_s: float


@dataclass(frozen=True, slots=True)
class PromptFolder:
    """A folder, which may not exist yet, and how many bytes its files may take."""

    path: Path
    limit_nbytes: int

    def make(self) -> None:
        """Make the folder, which only its owner may read. Raises OSError if it is another user's."""
        files.make_folder(self.path)
        if not processes.is_own(self.path):
            raise PermissionError(f"{self.path} belongs to another user")

    def make_model(self, digest: str, about: dict[str, str]) -> Path:
        """Return the folder of a model, made if it is not there. Raises OSError."""
        folder = self.path / digest
        if not (folder / _ABOUT).exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            files.replace(folder / _ABOUT, json.dumps(about).encode())
        return folder

    def entries(self, folder: Path) -> Iterator[StoredFile]:
        """List the files of a model's folder. Raises OSError."""
        for path, stat in files.regular(folder.iterdir()):
            if named := _FILE.fullmatch(path.name):
                is_complete = not named[1] and not named[4]
                yield StoredFile(path, named[3], stat.st_size, stat.st_mtime_ns, is_complete)

    def make_room(self, nbytes: int) -> int:
        """Delete what was used longest ago until so many bytes fit; return what is taken then. Raises OSError."""
        entries = [entry for folder in self._folders() for entry in self.entries(folder)]
        oldest_ns = time.time_ns() - int(ABANDONED_S * 1e9)
        entries.sort(
            key=lambda entry: (entry.is_complete or entry.used_ns > oldest_ns, entry.used_ns)
        )
        taken = sum(entry.nbytes for entry in entries)
        limit = self.limit_nbytes - nbytes
        if taken > limit:
            limit -= int(self.limit_nbytes * SLACK)
        for entry in entries:
            is_abandoned = not entry.is_complete and entry.used_ns <= oldest_ns
            if taken > limit or is_abandoned:
                entry.path.unlink(missing_ok=True)
                taken -= entry.nbytes
        return taken

    def models(self) -> list[StoredModel]:
        """Return what there is of each model, the largest first. Raises OSError."""
        stored = []
        for folder in self._folders():
            if entries := [one for one in self.entries(folder) if one.kind != MET]:
                about = _about(folder)
                num_blocks = sum(entry.kind == KV and entry.is_complete for entry in entries)
                nbytes = sum(entry.nbytes for entry in entries)
                used_s = max(entry.used_ns for entry in entries) / 1e9
                names = about.get("model", "unknown"), about.get("kv", "unknown")
                stored.append(StoredModel(*names, num_blocks, nbytes, used_s))
        return sorted(stored, key=lambda model: -model.nbytes)

    def clear(self) -> int:
        """Delete all that is stored, and nothing else; return the bytes that were freed. Raises OSError."""
        freed = 0
        for folder in self._folders():
            freed += files.delete(entry.path for entry in self.entries(folder))
            for about in folder.glob(f"*{_ABOUT}*"):
                about.unlink(missing_ok=True)
            with suppress(OSError):  # a process writes into it
                folder.rmdir()
        return freed

    def _folders(self) -> list[Path]:
        with suppress(FileNotFoundError):
            folders = (path for path in self.path.iterdir() if _MODEL.fullmatch(path.name))
            return [path for path in folders if path.is_dir()]
        return []


def default_path() -> Path:
    """Return the folder that `auto` means."""
    return cache_root() / "prompts"


def touch(path: Path, used_ns: int) -> None:
    """Note when a file was used; where that cannot be written, it counts as used when it was written."""
    with suppress(OSError):
        os.utime(path, ns=(used_ns, used_ns))


def _about(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, RecursionError):
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if isinstance(about, dict):
            return {str(key): str(value) for key, value in about.items()}
    return {}
