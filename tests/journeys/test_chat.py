"""`forerun chat` in a real terminal: one session of everything a user does, and the next day's."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
CTRL_C, CTRL_D, UP, LEFT = "\x03", "\x04", "\x1b[A", "\x1b[D"


class Terminal:
    """A command in a pseudo-terminal of 80 columns: what is typed, and what is on the screen."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.fd, child = pty.openpty()
        termios.tcsetwinsize(child, (24, 80))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forerun", *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm", **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)
        self.seen = ""
        self.at = 0

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, text: str, timeout_s: float = 60) -> str:
        """Wait for a text; what came since the last one, with it."""
        give_up_s = time.monotonic() + timeout_s
        while (found := self.seen.find(text, self.at)) < 0:
            assert time.monotonic() < give_up_s, f"no {text!r} in {self.seen[self.at :]!r}"
            assert self._read(), f"ended without {text!r}: {self.seen[self.at :]!r}"
        start, self.at = self.at, found + len(text)
        return self.seen[start : self.at]

    def answer(self, text: str = "tok/s") -> str:
        """Press Enter; what is said until the next prompt, which comes after the text."""
        os.write(self.fd, b"\r")
        return self.expect(text) + self.expect("\r\n> ")

    def end(self) -> tuple[int, str]:
        """The exit code, and what came at last."""
        while self._read():
            pass
        return self.process.wait(timeout=30), self.seen[self.at :]

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError as error:
            if error.errno == errno.EIO:  # the other side is closed
                return False
            raise
        self.seen += COLOURS.sub("", data.decode(errors="replace"))
        return bool(data)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.fd)


@pytest.fixture
def chat(default_model: Path, tmp_path: Path) -> Iterator:
    """Starts chats that share a cache."""
    started = []

    def start(*arguments: str) -> Terminal:
        environment = {"FORERUN_CACHE": str(tmp_path)}
        terminal = Terminal(["chat", "-m", str(default_model), *arguments], environment)
        started.append(terminal)
        terminal.expect("Ctrl-D ends\r\n> ")
        return terminal

    yield start
    for terminal in started:
        terminal.close()


def test_a_session_and_the_next(chat, tmp_path: Path) -> None:
    today = chat("-n", "24", "--ignore-eos", "--system", "You are brief.")
    assert "temperature 0.2, drafter mlp_speculator++recycling" in today.seen
    today.type("What is the capital of Fxance?" + LEFT * 5 + "\br")
    assert "cut at 24 tokens (--max-tokens); Enter goes on" in today.answer()
    assert "cut at 24 tokens" in today.answer()
    today.type('"""\rone\rtwo"""')
    assert today.answer().count("... ") == 2
    today.type("\x1b[200~def f(x):\r    return x\x1b[201~")  # pasted
    today.answer()
    today.type("/undo")
    assert "taken back: def f(x):" in today.answer("return x")
    for typed, said in [
        ("/help", "/drafter [SPEC]"),
        ("/hepl", "error: unknown command '/hepl': did you mean '/help'?"),
        ("/drafter none", "tokens per pass (tau)"),
        (f"/save {tmp_path / 'talk'}", "saved 5 messages"),
        ("/system", "You are brief."),
        ("/clear", "forgotten"),
    ]:
        today.type(typed)
        assert said in today.answer(said)
    today.type("half a li")
    today.expect("half a li")  # echoed, so the line is being edited
    time.sleep(0.5)  # Python sees a signal that comes while a key is handled only with the next key
    today.type(CTRL_C)
    today.expect("Ctrl-D or /exit ends the chat\r\n> ")
    today.type(CTRL_D)
    code, last = today.end()
    assert code == 0
    assert "4 answers, 96 tokens, " in last
    assert "tokens per pass (tau): mlp_speculator++recycling " in " ".join(last.split())
    messages = json.loads((tmp_path / "talk").read_text())
    assert [m["content"] for m in messages if m["role"] == "user"] == [
        "What is the capital of France?",
        "one\ntwo",
    ]

    tomorrow = chat("-n", "2000", "--ignore-eos")
    tomorrow.type(UP * 11)
    tomorrow.expect('two"""')
    tomorrow.type(UP * 3)
    tomorrow.expect("capital of France?")
    tomorrow.type("\r")
    tomorrow.expect("\r\n")
    tomorrow.expect(" ")  # it answers
    tomorrow.type(CTRL_C)
    assert "stopped; Enter goes on" in tomorrow.expect("\r\n> ")
    tomorrow.type("/bye\r")
    code, last = tomorrow.end()
    assert code == 0
    assert "1 answer, " in last
    assert (tmp_path / "chat_history").stat().st_mode & 0o077 == 0
