"""Running Python and forerun's kernels for AArch64 on another processor: a cross compiler and qemu's user mode.

Knows the tools and the folder of `dev/arm/sysroot.sh`, not what is run. Speed under emulation says nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "arm"
CPUS: Mapping[str, str] = {"cortex-a53": "portable", "neoverse-n1": "neon", "max": "neon_i8mm"}
"""qemu's CPU models, and the kernels each should choose: without dotprod, with it, with i8mm too."""
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def missing(sysroot: Path | None) -> str | None:
    """Return what keeps kernels from being built and run here; None if nothing does."""
    for tool, package in (
        (COMPILER, "g++-aarch64-linux-gnu"),
        (EMULATOR, "qemu-user"),
        ("cmake", "cmake"),
        ("ninja", "ninja-build"),
    ):
        if shutil.which(tool) is None:
            return f"{tool} is not there (Debian's package {package})"
    if sysroot is None:
        return "no folder with Python for arm64 was given (make arm ARM=FOLDER; dev/arm/sysroot.sh makes one)"
    for path in (python(sysroot), sysroot / "site" / "torch", sysroot / "site" / "nanobind"):
        if not path.exists():
            return f"{path} is not there: dev/arm/sysroot.sh makes it"
    if sys.version_info[:2] != (3, 11):
        return "the folder's Python is 3.11: build with Python 3.11, whose headers are the same"
    return None


def python(sysroot: Path) -> Path:
    """Return the folder's interpreter."""
    return sysroot / "root" / "usr" / "bin" / "python3.11"


def build(sysroot: Path) -> None:
    """Cross-compile the kernels, beside links to the package's Python files. Raises CalledProcessError."""
    package = BUILD / "package" / "forerun"
    package.mkdir(parents=True, exist_ok=True)
    for path in (REPOSITORY / "src" / "forerun").iterdir():
        link = package / path.name
        if path.suffix != ".so" and not link.is_symlink():
            link.symlink_to(path)
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": sysconfig.get_path("include"),
        "nanobind_DIR": sysroot / "site" / "nanobind" / "cmake",
    }
    given = [f"-D{name}={value}" for name, value in options.items()]
    _run(["cmake", "-G", "Ninja", "-S", REPOSITORY, "-B", BUILD / "cmake", *given])
    _run(["ninja", "-C", BUILD / "cmake"])
    [built] = (BUILD / "cmake").glob("_native*.so")  # its name has the suffix of the host's Python
    shutil.copy(built, package / "_native.so")


def run(
    sysroot: Path,
    cpu: str,
    arguments: Sequence[str | Path],
    *,
    plugin: Path | None = None,
    shown: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the folder's Python with forerun's packages on a CPU model; its output is returned, or shown as it comes.

    Two threads, whatever the machine has.
    """
    paths = (REPOSITORY, BUILD / "package", sysroot / "site")
    environment = os.environ | {
        "PYTHONPATH": ":".join(map(str, paths)),
        "OMP_NUM_THREADS": "2",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EMULATED": "1",
    }
    counting = [] if plugin is None else ["-plugin", plugin]
    words = [EMULATOR, "-cpu", cpu, *counting, "-L", sysroot / "root", python(sysroot), *arguments]
    return subprocess.run(
        list(map(str, words)), env=environment, cwd=REPOSITORY, capture_output=not shown, text=True
    )


def _run(words: Sequence[str | Path]) -> None:
    subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True)
