"""How ranks find each other on real sockets, whoever else connects."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from forerun.core.errors import ConfigError
from forerun.parallel import link
from forerun.parallel.link import HEADER, Follower, Leader, Listener

STRAYS = {
    "silent": b"",
    "4 GiB": b"\xff\xff\xff\xff" + b"x" * 100,
    "half a frame": HEADER.pack(50) + b"[",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "no JSON": HEADER.pack(3) + b"abc",
    "nested": HEADER.pack(4000) + b"[" * 4000,
    "no list": HEADER.pack(1) + b"7",
    "wrong word": HEADER.pack(20) + b'["wrong",1,"orders"]',
    "no text": HEADER.pack(21) + '["ü",[1],{"a":0}]  '.encode(),
}


@pytest.fixture
def listener(monkeypatch) -> Iterator[Listener]:
    """Both ends are in this process, which they neither end nor outlive."""
    made, opened = [], link._opened
    monkeypatch.setattr(link, "leave", lambda why=None: None)
    monkeypatch.setattr(link, "_opened", lambda one: made.append(one) or opened(one))
    yield Listener("127.0.0.1")
    for one in made:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for thread in threading.enumerate():
        if thread.name in ("ranks", "rank 0"):
            thread.join(10)
    for one in made:
        one.close()


@pytest.fixture
def stray(listener) -> Iterator[Callable[[bytes], socket.socket]]:
    with ExitStack() as held:

        def connect(said: bytes) -> socket.socket:
            one = socket.create_connection(listener.address[:2], timeout=10)
            held.enter_context(one)
            one.sendall(said)
            return one

        yield connect


def linked(listener: Listener, size: int = 2) -> tuple[Leader, list[Follower]]:
    """Both ends, once all have met."""
    found: list[Follower] = []
    ranks = [
        threading.Thread(target=lambda rank=rank: found.append(Follower(listener.address, rank)))
        for rank in range(1, size)
    ]
    for one in ranks:
        one.start()
    leader = listener.accept(size)
    for one in ranks:
        one.join()
    return leader, found


@pytest.mark.parametrize("kind", STRAYS)
def test_a_stray_connection_does_not_end_the_start(listener, stray, kind):
    held = [stray(STRAYS[kind]) for _ in range(3)]
    start_s = time.monotonic()
    leader, (follower,) = linked(listener)
    assert time.monotonic() - start_s < 5, "nobody waited for it"
    leader.send("hello", 1)
    assert follower.receive() == ["hello", 1]
    for one in held:
        with one, suppress(ConnectionResetError):
            assert one.recv(1) == b""
    leader.end()
    assert follower.receive() == ["end"]


def test_what_a_rank_says_after_its_name_is_not_lost(listener):
    """An answer that was sent at once waits behind the name."""
    address = listener.address
    with ExitStack() as held:
        for kind in link.KINDS:
            one = held.enter_context(socket.create_connection(address[:2]))
            one.sendall(link._framed((address.word, 1, kind)))
            rows = np.arange(3, dtype=np.float32)
            one.sendall(HEADER.pack(rows.nbytes) + rows.tobytes())
        leader = listener.accept(2)
        assert leader.request(1, ("rows",), rows).tolist() == [0, 1, 2]
        leader.end()


def test_more_strays_than_are_kept_open_keep_no_rank_out(listener, stray):
    for _ in range(link.MAX_STRAYS + 20):
        stray(b"")
    leader, followers = linked(listener, 3)
    assert len(followers) == 2
    leader.end()


def test_a_rank_that_does_not_come_is_told_in_time(listener, stray, monkeypatch):
    monkeypatch.setattr(link, "WAIT_S", 0.3)
    stray(b"")
    with pytest.raises(ConfigError, match=r"only 1 of 2 ranks came within 0.3 s"):
        listener.accept(2)
