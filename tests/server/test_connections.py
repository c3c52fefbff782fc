"""Connections that only take room: half a head, no head, a body that no one wanted; on real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from forerun.server import connections
from forerun.server.run import bind
from tests.server import conftest
from tests.server.conftest import running, wait_until

ANSWERED_AT_ONCE = 8_000
"""Tokens whose pieces are sent in one part, which no system takes off the server's hands."""
HALF = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"


def test_parts_of_an_answer_are_sent_at_once():
    """Not held back until the client has acknowledged those before, which takes it 40 ms."""

    async def delays() -> int:
        found = asyncio.get_running_loop().create_future()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            one = writer.get_extra_info("socket")
            found.set_result(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            is_at_once = await found
            writer.close()
        return is_at_once

    assert asyncio.run(delays())


@pytest.fixture
def opened() -> Iterator[Callable[..., list[socket.socket]]]:
    """Opens so many connections to a port, and closes all of them in the end."""
    with ExitStack() as held:

        def open_some(port: int, number: int, sent: bytes = HALF) -> list[socket.socket]:
            made = []
            for _ in range(number):
                one = socket.create_connection(("127.0.0.1", port), timeout=20)
                made.append(held.enter_context(one))
                one.sendall(sent)
            return made

        yield open_some


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def num_open(port: int) -> int:
    """Connections to a port that this process has a descriptor of, at the server's end."""
    inodes = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(link))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(
        int(row[1].partition(":")[2], 16) == port
        and row[3] != "0A"
        and f"socket:[{row[9]}]" in inodes
        for row in rows
    )


def closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [HALF, b""])
def test_half_a_head_does_not_stay(opened, llm, sent):
    with running(lambda: llm, idle_timeout=0.4) as (url, _):
        (half,) = opened(port_of(url), 1, sent)
        start_s = time.monotonic()
        assert closed(half)
        assert 0.3 < time.monotonic() - start_s < 10
        with httpx.Client() as client:
            assert client.get(f"{url}/health").status_code == 200
            time.sleep(0.9)  # kept alive for 0.4 s
            assert client.get(f"{url}/health").status_code == 200


@pytest.fixture
def deaf(monkeypatch) -> Iterator[Callable[..., socket.socket]]:
    """Opens a connection whose client asks for that many tokens of a text and reads nothing of the answer.

    The system takes little of it off the server's hands. `times`: it asks again without waiting.
    """

    def narrow(host: str, port: int) -> socket.socket:
        listener = bind(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return listener

    monkeypatch.setattr(conftest, "bind", narrow)
    with ExitStack() as held:

        def ask(port: int, number: int, times: int = 1) -> socket.socket:
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            one.connect(("127.0.0.1", port))
            body = json.dumps({"content": "a " * number, "with_pieces": True}).encode()
            head = (
                "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            )
            one.sendall((f"{head}content-length: {len(body)}\r\n\r\n".encode() + body) * times)
            return one

        yield ask


def test_who_never_reads_an_answer_keeps_no_descriptor(deaf, llm):
    """The answer is complete for the server, but its last part waits for a window that stays shut."""
    with running(lambda: llm, idle_timeout=0.5) as (url, _):
        for _ in range(3):
            deaf(port_of(url), ANSWERED_AT_ONCE)
        wait_until(lambda: num_open(port_of(url)) == 3)
        wait_until(lambda: not num_open(port_of(url)))


@pytest.mark.parametrize(("number", "times"), [(30_000, 1), (ANSWERED_AT_ONCE, 2)])
def test_who_never_reads_a_long_or_a_second_answer_keeps_no_descriptor(
    deaf, llm, monkeypatch, number, times
):
    """The answer is cut when the client has stalled: in its middle, or before it began."""
    monkeypatch.setattr(connections, "STALLED_S", 0.3)
    with running(lambda: llm, idle_timeout=0.5) as (url, _):
        deaf(port_of(url), number, times)
        wait_until(lambda: num_open(port_of(url)) == 1)
        wait_until(lambda: not num_open(port_of(url)))


def test_who_never_reads_gives_way_to_a_new_connection(deaf, llm):
    with running(lambda: llm, max_connections=1) as (url, _):
        deaf(port_of(url), ANSWERED_AT_ONCE)
        wait_until(lambda: num_open(port_of(url)) == 1)
        time.sleep(0.3)
        assert httpx.get(f"{url}/health").status_code == 200
        wait_until(lambda: num_open(port_of(url)) <= 1)


def test_who_never_reads_does_not_hold_up_the_end(deaf, llm):
    with running(lambda: llm, drain_timeout=0.3) as (url, _):
        deaf(port_of(url), ANSWERED_AT_ONCE)
        wait_until(lambda: num_open(port_of(url)) == 1)
        time.sleep(0.3)
        start_s = time.monotonic()
    assert time.monotonic() - start_s < 2


def whole_request(max_tokens: int) -> bytes:
    body = json.dumps({"prompt": "one", "max_tokens": max_tokens, "ignore_eos": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_a_client_that_has_closed_its_writing_side_is_answered(opened, llm):
    with running(lambda: llm) as (url, _):
        (one,) = opened(port_of(url), 1, whole_request(8))
        one.shutdown(socket.SHUT_WR)
        received = b""
        while part := one.recv(1 << 16):
            received += part
    final = received.rpartition(b"\r\n\r\n")
    assert b"HTTP/1.1 200" in final[0]
    assert json.loads(final[2])["usage"]["completion_tokens"] == 8


def test_a_client_that_has_gone_is_not_answered_on(opened, llm):
    with running(lambda: llm) as (url, _):
        (one,) = opened(port_of(url), 1, whole_request(200))
        wait_until(lambda: llm.engine.has_work)
        one.close()
        start_s = time.monotonic()
        wait_until(lambda: not llm.engine.has_work)
        assert time.monotonic() - start_s < 5


def test_a_connection_too_many_closes_the_oldest_idle_one(opened, llm):
    with running(lambda: llm, max_connections=4) as (url, _):
        first, *others = opened(port_of(url), 4)
        others += opened(port_of(url), 1)
        assert closed(first)
        others[0].sendall(b"connection: close\r\ncontent-length: 0\r\n\r\n")
        assert others[0].recv(12) == b"HTTP/1.1 400"
        opened(port_of(url), 30)
        assert httpx.get(f"{url}/health").status_code == 200


def test_where_all_are_in_use_a_new_one_is_told(llm):
    body = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True, "stream": True}
    with running(lambda: llm, max_connections=1) as (url, _):
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            parts = answer.iter_bytes()
            next(parts)
            refused = httpx.get(f"{url}/health")
            assert refused.status_code == 503
            assert "--max-connections" in refused.json()["error"]["message"]
        assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize("has_length", [True, False])
def test_who_reads_only_after_a_body_that_is_too_large_reads_413(opened, llm, has_length):
    chunk = b"x" * 100_000
    with running(lambda: llm, max_body_mb=0.1, api_key="k") as (url, _):
        for key, status in ((b"k", b"413"), (b"wrong", b"401")):
            (client,) = opened(port_of(url), 1)
            client.sendall(b"x-api-key: %b\r\ncontent-type: application/json\r\n" % key)
            head = b"content-length: 20000000" if has_length else b"transfer-encoding: chunked"
            client.sendall(head + b"\r\n\r\n")
            for _ in range(200):
                client.sendall(chunk if has_length else b"186a0\r\n" + chunk + b"\r\n")
            client.sendall(b"" if has_length else b"0\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 " + status
            client.recv(1 << 16)
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"


def test_the_limit_leaves_descriptors_for_all_else(monkeypatch):
    limits = [(1024, 1024), (256, 4096), (1024, resource.RLIM_INFINITY), (20_000, 20_000), (64, 64)]
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: asked.append(pair[0]))
    for pair in limits:
        monkeypatch.setattr(resource, "getrlimit", lambda kind, pair=pair: pair)
        most = connections.most_connections()
        assert most <= max(min(pair[1] % (1 << 63), 4352) - 256, pair[1] // 2, 32) or most == 4096
    assert asked == [4096, 4352]


@pytest.mark.slow
def test_1200_half_heads_at_a_limit_of_1024_do_not_end_service(opened, default_model):
    command = [sys.executable, "-m", "forerun", "serve", str(default_model), "--port", "0"]
    with subprocess.Popen(
        ["bash", "-c", 'ulimit -n 1024; exec "$@"', "-", *command, "-c", "256"],
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            port = int(re.search(r"http://\S+:(\d+)", server.stderr.readline())[1])
            while "ready" not in server.stderr.readline():
                pass
            opened(port, 1200)
            body = {"prompt": "a", "max_tokens": 2}
            for _ in range(5):
                answer = httpx.post(
                    f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=20
                )
                assert answer.status_code == 200
                opened(port, 100)
        finally:
            server.terminate()
            told = server.stderr.read()
    assert "Traceback" not in told
    assert len(told.splitlines()) < 4, told
