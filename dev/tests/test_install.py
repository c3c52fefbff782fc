"""What `make setup` says while it compiles."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

from dev import install


def test_steps_are_read_from_what_ninja_and_make_say() -> None:
    assert doctest.testmod(install).failed == 0
    assert [
        *install.steps(["[1/2] Linking CXX", "[2/9] Building CXX object a/b.dir/x-y.cpp.o"])
    ] == ["compiling 2 of 9: x-y.cpp"]


def test_what_pip_said_is_shown_where_it_fails(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(install.__file__)), "--no-index", "no-such-package-at-all"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(install.__file__).parents[1]
    )
    assert done.returncode != 0
    assert "no-such-package-at-all" in done.stderr
    assert "installed in" not in done.stderr
