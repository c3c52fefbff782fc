"""The pool of threads, by small C++ programs of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("c++")
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_a_piece_that_throws_fails_its_job_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "pool_failures"
    sources = [
        ROOT / "csrc/model/pool.cpp",
        ROOT / "csrc/platform.cpp",
        Path(__file__).with_name("pool_failures.cpp"),
    ]
    command = [COMPILER, "-std=c++20", "-O1", "-pthread", f"-I{ROOT / 'csrc'}", *sources]
    subprocess.run([*command, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
