"""AMX's kernels where there is no AMX: their source with each tile instruction as a function, and the real one's code.

An emulated instruction aborts where the processor would: tiles that are not configured, or do not fit each other.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forerun import _native

CSRC = Path(__file__).parents[2] / "csrc"
COMPILER, OBJDUMP = shutil.which("c++") or shutil.which("g++"), shutil.which("objdump")
FLAGS = (
    *(
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512vnni",
    ),
    *(
        "-std=c++20",
        "-O1",
        "-ffp-contract=off",
        "-fPIC",
        "-shared",
        "-DFORERUN_EMULATE_TILES",
        "-w",
    ),
)
CHECK = """
import ctypes, sys
from forerun import _native
library = ctypes.CDLL(sys.argv[1])
_native.emulate_tiles(ctypes.addressof(ctypes.c_void_p.in_dll(library, "forerun_flat_linear")))
print(*_native.wrong_kernels("avx512_amx"))
"""
HEADERS = "isa/tiles.h", "kernels/flat_tiles.h"
STORE, LOAD = (
    "std::memcpy(static_cast<std::uint8_t*>(to)",
    "std::memcpy(bytes[tile][row], static_cast",
)
NOT_LAST = "if (row + 1 < config.rows[tile]) "
MUTANTS = {
    "codes are unsigned": ("static_cast<std::int8_t>(bytes[b]", "(bytes[b]"),
    "sums are not zeroed": ("std::memset(bytes[tile], 0, sizeof bytes[tile]);", ""),
    "the last row is not stored": (STORE, NOT_LAST + STORE),
    "the last row is not loaded": (LOAD, NOT_LAST + LOAD),
    "tiles are too short": ("set(x, kRowsAside, kGroup)", "set(x, kRowsAside, kGroup - 4)"),
    "rows behind are those in front": ("LOAD(5, x + next,", "LOAD(5, x,"),
    "codes of another tile": ("codes.of(g, 1)", "codes.of(g, 0)"),
    "codes are not unpacked ahead": ("unpack(g + kAhead)", "void()"),
    "nothing is configured": ("FORERUN_TILE_CONFIGURE(config);", ""),
}

pytestmark = pytest.mark.skipif(
    COMPILER is None or "avx512" not in _native.runnable_isas(),
    reason="needs a compiler and AVX-512",
)


def built(folder: Path, change: tuple[str, str] | None = None) -> Path:
    """The library of the emulated kernels, with a change to its tiles."""
    for name in ("isa", "kernels"):
        (folder / name).mkdir()
    texts = {name: (CSRC / name).read_text() for name in HEADERS}
    if change is not None:
        assert sum(text.count(change[0]) for text in texts.values()) == 1
        texts = {name: text.replace(*change) for name, text in texts.items()}
    for name, text in texts.items():
        (folder / name).write_text(text)
    library = folder / "tiles.so"
    sources = [
        "-I",
        folder,
        "-I",
        CSRC,
        CSRC / "isa/avx512_amx.cpp",
        CSRC / "platform.cpp",
        "-o",
        library,
    ]
    subprocess.run([str(COMPILER), *FLAGS, *map(str, sources)], check=True)
    return library


def wrong(library: Path) -> list[str] | None:
    """The kernels that have not the portable ones' bits; None if an instruction was not allowed."""
    done = subprocess.run([sys.executable, "-c", CHECK, library], capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else None


def test_emulated_tiles_have_the_portable_bits(tmp_path: Path) -> None:
    assert wrong(built(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_instruction_is_found(tmp_path: Path, name: str) -> None:
    found = wrong(built(tmp_path, MUTANTS[name]))
    assert found is None or found == ["linear"]


@pytest.mark.skipif(OBJDUMP is None, reason="needs objdump")
def test_the_real_kernels_have_their_instructions() -> None:
    code = subprocess.run(
        [str(OBJDUMP), "-d", "--no-show-raw-insn", _native.__file__], capture_output=True, text=True
    ).stdout
    count = {
        name: len(re.findall(rf"\t{name}\b", code))
        for name in ("tdpbusd", "ldtilecfg", "tilerelease")
    }
    # one or two blocks of rows with one or two tiles, 4 and 8 bits: 1 + 2 + 2 + 4 each
    assert count == {"tdpbusd": 18, "ldtilecfg": 1, "tilerelease": count["tilerelease"]}
    assert count["tilerelease"] > 0
