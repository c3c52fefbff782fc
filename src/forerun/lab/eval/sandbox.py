"""Running an untrusted program, such as a model's, in a process of its own with limits.

The process has a time and a memory limit, an empty environment, an empty folder that is deleted
afterwards, and refuses sockets, other processes and changes to files (see `_sandbox_runner.py`). That stops
accidents and careless code. It is no jail: a program that means harm and knows CPython well can get
out, so run what you distrust in a container or a virtual machine besides.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from forerun.core.errors import ConfigError
from forerun.core.system import end_group

_RUNNER = Path(__file__).with_name("_sandbox_runner.py")


def passes(program: str, *, seconds: float = 10.0, memory_mb: int = 1024) -> bool:
    """True if the program runs to its end: no exception, no exit of its own, no limit exceeded.

    The limits are wall time, and address space with the interpreter's. Raises ConfigError where the system has none.
    """
    if sys.platform == "win32":
        raise ConfigError(
            "programs are run within limits, which Windows does not have: run this task on Linux or macOS"
        )
    with tempfile.TemporaryDirectory(prefix="forerun-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(_RUNNER), str(memory_mb), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            verdict, _ = process.communicate(program.encode(errors="replace"), seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    return verdict == b"passed"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of it behind, whatever it did."""
    end_group(process)
    process.communicate()
