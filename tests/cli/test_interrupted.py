"""Ctrl-C: no `^C` inside an answer, and what was done is shown."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forerun import LLM
from tests.cli.helpers import FEW, the_json

ANSWER = """
import fcntl, sys, termios, time
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
from forerun.cli import console
from forerun.core.types import Event, TextPiece
def events():
    for _ in range(600):
        yield Event(0, (1,), (TextPiece("word ", from_draft=False),), None, None)
        time.sleep(0.05)
is_whole = console.show(events())
print("whole" if is_whole else "stopped", bool(termios.tcgetattr(1)[3] & termios.ECHOCTL))
"""


def test_ctrl_c_writes_nothing_into_an_answer() -> None:
    """And afterwards the terminal is as it was."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", ANSWER],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(theirs)
    shown, is_sent, end_s = b"", False, time.monotonic() + 60
    while time.monotonic() < end_s:
        try:
            read = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        shown += read
        if not read:
            break
        if b"word" in shown and not is_sent:
            os.write(ours, b"\x03")
            is_sent = True
    assert child.wait(timeout=60) == 0, shown
    os.close(ours)
    assert b"^C" not in shown
    assert b"stopped True" in shown


@pytest.fixture
def interrupted_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes as the second prompt is to be answered."""
    generate, asked = LLM.generate, []

    def stopping(self, *args, **options):
        asked.append(self)
        if len(asked) == 4:  # plain and drafted, twice
            raise KeyboardInterrupt
        return generate(self, *args, **options)

    monkeypatch.setattr(LLM, "generate", stopping)


@pytest.mark.usefixtures("interrupted_second")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_verify_shows_what_it_compared(forerun, default_model: Path, form: list[str]) -> None:
    given = ("-m", default_model, "--prompts", FEW, "-n", 8, "-t", 1, "-c", 256)
    code, out, err = forerun("verify", *given, *form)
    assert code == 130
    assert "stopped: only these 1 prompts were compared" in err
    if form:
        document = the_json(out)
        assert (document["prompts"], document["identical"]) == (1, True)
    else:
        assert "1 of 1" in out
