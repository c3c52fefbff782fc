"""The build refuses an instruction set's object that shares a function with others (csrc/isa/check_symbols.cmake)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CMAKE, NM, COMPILER = (shutil.which(name) for name in ("cmake", "nm", "c++"))
SCRIPT = Path(__file__).parents[2] / "csrc/isa/check_symbols.cmake"
OWN = "namespace forerun::avx2 { template <class T> T twice(T x) { return x + x; } }\n"
SHARED = "namespace forerun { inline int twice(int x) { return x + x; } }\n"
USE = "int use(int x) { return %s::twice(x); }\n"


@pytest.mark.skipif(None in (CMAKE, NM, COMPILER), reason="needs cmake, nm and a compiler")
@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("avx2.cpp", OWN + USE % "forerun::avx2", ""),
        ("avx2.cpp", SHARED + USE % "forerun", "forerun::twice(int)"),
        ("portable.cpp", SHARED + USE % "forerun", ""),
    ],
)
def test_a_shared_inline_function_fails_the_build(
    tmp_path: Path, file: str, source: str, complaint: str
) -> None:
    (tmp_path / "isa").mkdir()
    path = tmp_path / "isa" / file
    path.write_text(source)
    compiled = f"{path}.o"
    subprocess.run([str(COMPILER), "-O0", "-c", path, "-o", compiled], check=True)
    command = [str(CMAKE), f"-DNM={NM}", f"-DOBJECTS=x.o|{compiled}", "-P", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode != 0) == bool(complaint)
    assert complaint in " ".join(done.stderr.split())
