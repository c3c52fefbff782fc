"""Threads of ours end in a way that they say, whoever starts them."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from pathlib import Path

from forerun.system import background

ROOT = Path(background.__file__).parents[1]

PROGRAM = """
import threading, time
from forerun.system import background

has_begun = threading.Event()

def work():
    has_begun.set()
    while not background.is_ending():
        time.sleep(0.01)
    print("ended")

def load():
    background.start("work", work)
    time.sleep(60)

threading.Thread(target=load, daemon=True).start()
has_begun.wait()
"""


def test_a_program_waits_for_what_a_daemon_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


OWNED = """
import threading
from forerun.system import background

has_begun, is_over = threading.Event(), threading.Event()

def work():
    has_begun.set()
    is_over.wait()
    print("ended")

background.owned("work", work, is_over.set).start()
has_begun.wait()
"""


def test_a_program_ends_what_its_owner_has_not() -> None:
    done = subprocess.run([sys.executable, "-c", OWNED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_threads_are_found_by_name_and_waited_for_as_long_as_asked() -> None:
    has_ended = threading.Event()
    thread = background.start("a test's", has_ended.wait)
    background.join("a test's", 0.01)
    assert background.running("a test's") == [thread]
    has_ended.set()
    background.join("a test's")
    assert not background.running("a test's")


def test_no_other_module_starts_a_thread_by_itself() -> None:
    """Executors wait for their threads: each `with` block at its end, the others when the program ends."""
    starting = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread"))
        or (isinstance(node, ast.ClassDef) and "Thread" in " ".join(map(ast.unparse, node.bases)))
    ]
    assert {place.split(":")[0] for place in starting} == {"system/background.py"}, starting
