"""No request stalls the others: while one client sends what is huge, `/health` answers and a stream goes on.

The server is a process of its own, and the clients are sockets: nothing here waits for the same interpreter.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import pytest

from tests.server.conftest import apart, status_mb

WORDS = "The quick brown fox jumps over the lazy dog, 123 times. "
MB = 1_000_000


def text(nbytes: int) -> str:
    return (WORDS * (nbytes // len(WORDS) + 1))[:nbytes]


def chat(content: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}


ATTACKS: dict[str, Callable[[], tuple[str, dict[str, object]]]] = {
    "prompt": lambda: ("/v1/completions", {"prompt": text(int(3.6 * MB))}),
    "chat": lambda: ("/v1/chat/completions", chat(text(int(3.6 * MB)))),
    "spaces": lambda: ("/v1/completions", {"prompt": " " * 300_000, "max_tokens": 1}),
    "digits": lambda: ("/v1/completions", {"prompt": "0" * 600_000, "max_tokens": 1}),
    "messages": lambda: (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}] * 100_000},
    ),
    "items": lambda: ("/v1/responses", {"input": [{"role": "user", "content": "a"}] * 90_000}),
    "tokenize": lambda: ("/tokenize", {"prompt": text(int(3.6 * MB)), "with_pieces": True}),
    "tokenize 0.9 MB": lambda: ("/tokenize", {"content": text(900_000), "with_pieces": True}),
    "count": lambda: ("/v1/messages/count_tokens", chat(text(int(3.6 * MB)))),
    "ids": lambda: ("/v1/completions", {"prompt": [1] * 1_300_000}),
    "detokenize": lambda: ("/detokenize", {"tokens": [300] * 700_000}),
    "lists": lambda: ("/v1/completions", {"prompt": [text(15_000)] * 100, "max_tokens": 1}),
    "prediction": lambda: (
        "/v1/chat/completions",
        chat("Hello", n=16, prediction={"type": "content", "content": text(300_000)}),
    ),
    "bias": lambda: (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 8, "logit_bias": {str(i): 1.0 for i in range(49_000)}},
    ),
    "values": lambda: ("/v1/completions", {"prompt": "a", "metadata": [{}] * 900_000}),
    "wrong": lambda: ("/v1/completions", {"prompt": "a", "stop": [1] * 1_000_000}),
    "stops": lambda: (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 64, "stop": [f"{i}{text(50_000)}" for i in range(60)]},
    ),
    "name": lambda: ("/v1/completions", {"prompt": "a", "model": text(int(3.6 * MB))}),
    "masks": lambda: (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 60, "guided_grammar": 'root ::= [a-z ]* [a-z ]* root | "Z"'},
    ),
    "banner": lambda: (
        "/v1/completions",
        {"prompt": "a", "guided_grammar": f"root ::= a\n{'#' * 60_000}"},
    ),
    "expressions": lambda: (
        "/v1/completions",
        {
            "prompt": "a",
            "guided_grammar": "start: X\nX: " + " & ".join(f"/.*a.{{{i}}}b.*/" for i in range(60)),
        },
    ),
    "dots": lambda: (
        "/v1/completions",
        {"prompt": "a", "guided_grammar": "root ::= " + ".* " * 60 + 'root | "z"'},
    ),
    "nested": lambda: ("/v1/completions", {"prompt": "a", "guided_json": {"enum": ["a"] * 90_000}}),
}


@dataclass
class Seen:
    """What the neighbours saw, in seconds."""

    health: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def line(self) -> str:
        def both(found: Sequence[float]) -> str:
            return f"{median(found) * 1e3:.1f} / {max(found) * 1e3:.0f} ms"

        counts = {status: self.statuses.count(status) for status in {*self.statuses}}
        return f"health {both(self.health)}, stream {both(self.gaps)}, {counts}"


class Client:
    """A connection of a socket's own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, path: str, body: bytes, method: str = "POST") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nconnection: close\r\n"
        kind = "content-type: application/json\r\n" if body else ""
        made.sendall(f"{head}{kind}content-length: {len(body)}\r\n\r\n".encode() + body)
        return made

    def status(self, path: str, body: bytes = b"", method: str = "POST") -> int:
        """The status of the answer, which is read to its end."""
        with self.send(path, body, method) as made:
            first = made.recv(1 << 16)
            while made.recv(1 << 20):
                pass
        return int(first.split(b" ", 2)[1])


def neighbours(port: int, attack: Callable[[], Sequence[int]], seconds: float = 0.0) -> Seen:
    """What `/health` and a stream see while `attack` runs, for `seconds` at least."""
    seen, done, client = Seen(), threading.Event(), Client(port)

    def poll() -> None:
        while not done.is_set():
            start_s = time.perf_counter()
            assert client.status("/health", method="GET") == 200
            seen.health.append(time.perf_counter() - start_s)
            time.sleep(0.01)

    def stream() -> None:
        body = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        while not done.is_set():
            with client.send(
                "/v1/completions", json.dumps(body | {"temperature": 1}).encode()
            ) as made:
                last_s = None
                while not done.is_set() and (found := made.recv(1 << 16)):
                    now_s = time.perf_counter()
                    if last_s is not None:
                        seen.gaps.append(now_s - last_s)
                    last_s = now_s if b"data: {" in found else last_s

    threads = [threading.Thread(target=each) for each in (poll, stream)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    end_s = time.perf_counter() + seconds
    try:
        seen.statuses += attack()
        time.sleep(max(0.0, end_s - time.perf_counter()))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return seen


def at_once(port: int, name: str, times: int) -> Callable[[], list[int]]:
    """An attack by so many clients together; the statuses that they get."""
    path, given = ATTACKS[name]()
    body, client = json.dumps(given).encode(), Client(port)

    def attack() -> list[int]:
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(client.status(path, body)))
            for _ in range(times)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    return attack


@pytest.fixture(scope="module")
def process(default_model) -> Iterator[tuple[subprocess.Popen[str], int]]:
    flags = ("--max-num-seqs", "4", "--max-model-len", "2048", "-d", "suffix")
    with apart(default_model, *flags) as (server, url, _):
        yield server, int(url.rpartition(":")[2])


QUICK = ("chat", "tokenize 0.9 MB", "prediction", "bias", "items", "expressions", "dots")
"""One for each thing that takes long; all of them, by more clients, are slow."""


@pytest.mark.parametrize("name", QUICK)
def test_what_is_huge_stalls_no_one(process, name):
    _, port = process
    seen = neighbours(port, at_once(port, name, 2))
    assert max(seen.health) < 1, seen.line()
    assert max(seen.gaps) < 1, seen.line()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ATTACKS])
def test_24_at_once_stall_no_one_and_leave_no_memory_behind(process, name):
    server, port = process
    before_mb = status_mb(server)
    calm = neighbours(port, lambda: [], 2)
    seen = neighbours(port, at_once(port, name, 24), 1)
    time.sleep(0.5)
    grown_mb = status_mb(server) - before_mb
    print(f"{name}: {seen.line()}; without: {calm.line()}; RSS +{grown_mb:.0f} MB")
    assert median(seen.health) < 0.1, seen.line()
    assert max(seen.health) < 1, seen.line()
    assert max(seen.gaps) < 1, seen.line()
    assert grown_mb < 150
