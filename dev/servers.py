"""Servers of this machine, ours and others', run as processes for as long as something asks them."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from forerun.core.errors import ConfigError
from forerun.server.client import Remote, RemoteError

START_S = 300.0
"""How long a server may take until it answers."""
END_S = 10.0


class _Process:
    """A server of this machine; `remote` is its address. Raises ConfigError if it does not come to answer."""

    def __init__(self, name: str, command: Sequence[str], port: int) -> None:
        self.name = name
        self.remote = Remote.of(f"http://127.0.0.1:{port}/v1")
        self._words = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours: we end it when the answers are counted
        )
        try:
            self._wait()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End it, at once if it does not end by itself."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()

    def _wait(self) -> None:
        limit_s = time.monotonic() + START_S
        while self._process.poll() is None:
            with suppress(RemoteError):
                if self.remote.models() and self._is_ready():
                    return
            if time.monotonic() > limit_s:
                raise ConfigError(f"{self.name} does not answer after {START_S:g} s")
            time.sleep(0.1)
        self._words.seek(0)
        last = [line.strip() for line in self._words if line.strip()][-1:]
        why = "".join(last).removeprefix("error: ")[:300]
        raise ConfigError(f"{self.name} ended, exit code {self._process.returncode}: {why}")

    def _is_ready(self) -> bool:
        """A short answer, which also touches its memory; a server that still loads refuses it."""
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        with self.remote.stream("/chat/completions", body) as stream:
            return any(True for _ in stream)


@contextmanager
def running(name: str, command: Sequence[str], port: int) -> Iterator[Remote]:
    """Run the server that a command starts, from its first answer to the end of the block. Raises ConfigError."""
    process = _Process(name, command, port)
    try:
        yield process.remote
    finally:
        process.end()


def free_port() -> int:
    """Return a port on which no one listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
