"""The limits of untrusted code."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from forerun.lab.eval.sandbox import passes

FINE = {
    "arithmetic": "assert 1 + 1 == 2",
    "the standard library": "import math, re, typing, collections, heapq, random, string",
    "printing": "print('passed' * 1000)",
    "catching its own errors": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass",
}
WRONG = {
    "a failing test": "assert 1 + 1 == 3",
    "a syntax error": "def f(:",
    "leaving early": "import sys; sys.exit(0)",
    "leaving at once": "import os; os._exit(0)",
    "printing the verdict": "import os; print('passed', flush=True); os._exit(0)",
    "too much memory": "x = bytearray(2 << 30)",
    "endless recursion": "def f():\n    return f()\nf()",
}
FORBIDDEN = {
    "a socket": "import socket; socket.socket()",
    "a name look-up": "import socket; socket.getaddrinfo('localhost', 80)",
    "a process": "import subprocess; subprocess.run(['true'])",
    "a shell": "import os; os.system('true')",
    "a fork": "import os; os.fork()",
    "another program": "import os; os.execv('/bin/true', ['true'])",
    "a new file": "open('x', 'w')",
    "a changed file": "open({victim!r}, 'a')",
    "a deleted file": "import os; os.remove({victim!r})",
    "a renamed file": "import os; os.rename({victim!r}, {victim!r} + 'x')",
    "a deleted folder": "import shutil; shutil.rmtree({folder!r})",
    "foreign code": "import ctypes; ctypes.CDLL(None)",
    "more memory": "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))",
    "a signal": "import os; os.kill(os.getppid(), 0)",
}
REFUSED = """
try:
    exec({line!r})
except PermissionError as error:
    assert "not allowed here" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("program", FINE.values(), ids=FINE)
def test_a_program_that_ends_well_passes(program):
    assert passes(program)


@pytest.mark.parametrize("program", WRONG.values(), ids=WRONG)
def test_a_program_that_ends_otherwise_does_not(program):
    assert not passes(program)


@pytest.mark.parametrize("program", FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_forbidden_raises_in_the_program_and_changes_nothing(program, tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("here")
    line = program.format(victim=str(victim), folder=str(tmp_path))
    assert passes(REFUSED.format(line=line)), "it is told why"
    assert not passes(line)
    assert victim.read_text() == "here"


def test_an_endless_program_is_ended():
    start = time.monotonic()
    assert not passes("while True: pass", seconds=0.5)
    assert time.monotonic() - start < 8


def test_a_program_finds_an_empty_folder_and_environment():
    assert passes("import os; assert {*os.environ} <= {'LC_CTYPE'}; assert os.listdir() == []")


def test_the_runner_needs_nothing_of_forerun():
    runner = Path(__file__).parents[3] / "src" / "forerun" / "lab" / "eval" / "_sandbox_runner.py"
    assert "import forerun" not in runner.read_text()
    assert passes("import sys; assert not any(name.startswith('forerun') for name in sys.modules)")
