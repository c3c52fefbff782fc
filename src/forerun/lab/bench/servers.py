"""Who answers a load: servers started here (ours, llama.cpp's) or running elsewhere."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.cli import console
from forerun.core.errors import ConfigError, unknown
from forerun.server.client import Remote, RemoteError

START_S = 300.0
"""How long a server may take until it answers."""
END_S = 10.0
OURS, LLAMA = "forerun", "llama-server"


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


@dataclass(frozen=True, slots=True)
class Start:
    """How systems are started: all with as many sequences, threads and tokens a sequence.

    Each method returns a block in which the system answers.
    """

    model: Path
    max_num_seqs: int
    threads: int
    max_len: int
    server_args: Sequence[str] = ()
    """Of `forerun serve`, besides."""

    def ours(self) -> AbstractContextManager[Remote]:
        """`forerun serve` in a process of its own."""
        port = free_port()
        command = [sys.executable, "-m", "forerun", "serve", str(self.model), "--port", str(port)]
        command += ["--max-num-seqs", str(self.max_num_seqs), "--threads", str(self.threads)]
        command += ["--max-model-len", str(self.max_len), *self.server_args]
        return running(OURS, command, port)

    def llama(self, folder: Path) -> AbstractContextManager[Remote]:
        """llama-server if it is on the PATH, else that of llama-cpp-python in the peers' folder, with one sequence."""
        port = free_port()
        if (program := shutil.which(LLAMA)) is not None:
            command = [program, "-m", str(self.model), "--host", "127.0.0.1", "--port", str(port)]
            command += ["-np", str(self.max_num_seqs), "-c", str(self.max_num_seqs * self.max_len)]
            return running(LLAMA, [*command, "-t", str(self.threads)], port)
        python = folder.absolute() / "llama.cpp" / "bin" / "python"
        if not python.exists():
            raise ConfigError(f"neither {LLAMA} on the PATH nor {python} is there: run make peers")
        flags = {
            "model": self.model,
            "host": "127.0.0.1",
            "port": port,
            "n_ctx": self.max_len,
            "n_threads": self.threads,
            "n_threads_batch": self.threads,
            # It has one sequence: without this a new request breaks off the one that runs.
            "interrupt_requests": "false",
            "verbose": "false",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return running(LLAMA, [str(python), "-m", "llama_cpp.server", *words], port)


Systems = Mapping[str, Callable[[], AbstractContextManager[Remote]]]
"""By name: who answers, from a fresh start where it is started here."""


def systems(start: Start, peer: str | None, peers_dir: Path) -> Systems:
    """Return ours, and the peer if one is asked for. Raises ConfigError."""
    if peer not in (None, LLAMA):
        raise ConfigError(unknown("peer", str(peer), [LLAMA]))
    if peer is not None and start.model.suffix != ".gguf":
        raise ConfigError(f"--peer reads GGUF files only, and {start.model.name} is none")
    answering: dict[str, Callable[[], AbstractContextManager[Remote]]] = {OURS: start.ours}
    if peer is not None:
        answering[LLAMA] = lambda: start.llama(peers_dir)
    return answering


def remote(url: str, api_key: str | None, model: str | None, num_loads: int) -> tuple[str, Systems]:
    """Return the model of a server that runs elsewhere, and the server."""
    there = Remote.of(url, api_key)
    name = str(there.model(model)["id"])
    if num_loads > 1:
        why = "its caches know the prompts from the second load on: restart it to compare loads"
        console.note(f"the server keeps running between loads: {why}", fg="yellow")
    return name, {there.url: lambda: nullcontext(replace(there, name=name))}


def free_port() -> int:
    """Return a port on which no one listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
