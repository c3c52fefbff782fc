"""How rank 0 tells the others what to do, and how all learn that one of them has ended.

Every other rank has two connections to rank 0. On the first come commands, JSON lists with their length in front. On
the second nothing is sent until a rank fails: it sends why, or is cut off because its process is gone. Then all end,
within moments, whatever they are doing: a pass waits for every rank, so none could go on alone.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import ConfigError, reason
from forerun.system import background

Floats = NDArray[np.float32]

HEADER = struct.Struct("!I")
WAIT_S = 60.0
"""For the others to connect."""
AWAKE_S = 0.05
"""For which a rank looks out for the next command before it sleeps: what rank 0 takes between two passes."""
FAILED = 1
"""Exit code of ranks that end because one has failed."""


KINDS = ("commands", "life")
"""The connections of a rank."""
HELLO_NBYTES = 4096
"""Of what a connection says before it is known to be a rank's, at most."""
MAX_STRAYS = 64
"""Connections that may be open without having said whose they are."""
UNKNOWN = (None, None)


class Address(NamedTuple):
    """Where rank 0 listens, and the word by which it knows its own."""

    host: str
    port: int
    word: str


class Listener:
    """The address of rank 0, before the others come."""

    def __init__(self, host: str) -> None:
        try:
            self._socket = socket.create_server((host, 0))
        except OSError as error:
            raise ConfigError(f"rank 0 cannot listen on {host}: {reason(error)}") from error
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_hex(16))

    def accept(self, size: int) -> Leader:
        """Return the link once all others are there. Raises ConfigError if one does not come.

        Any other connection is closed, and delays none of these.
        """
        wanted = {(rank, kind) for rank in range(1, size) for kind in KINDS}
        found: dict[tuple[int, str], socket.socket] = {}
        strays: dict[socket.socket, bytearray] = {}
        deadline = time.monotonic() + WAIT_S
        with self._socket, selectors.DefaultSelector() as selector:
            self._socket.setblocking(False)
            selector.register(self._socket, selectors.EVENT_READ)
            while len(found) < len(wanted) and (left_s := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    if key.fileobj is self._socket:
                        self._let_in(selector, strays)
                        continue
                    one = cast(socket.socket, key.fileobj)
                    name = self._greeted(one, strays)
                    if name is None:
                        continue
                    selector.unregister(one)
                    del strays[one]
                    if name in wanted and name not in found:
                        found[name] = _opened(one)
                    else:
                        one.close()
        for one in strays:
            one.close()
        if len(found) < len(wanted):
            for one in found.values():
                one.close()
            come = sum(all((rank, kind) in found for kind in KINDS) for rank in range(1, size))
            raise ConfigError(f"only {come + 1} of {size} ranks came within {WAIT_S:g} s")
        return Leader(*([found[rank, kind] for rank in range(1, size)] for kind in KINDS))

    def _let_in(
        self, selector: selectors.BaseSelector, strays: dict[socket.socket, bytearray]
    ) -> None:
        """Accept a connection, in place of the oldest that has not said who it is where there are many."""
        try:
            one, _ = self._socket.accept()
        except OSError:  # it has gone again
            return
        if len(strays) == MAX_STRAYS:
            oldest = next(iter(strays))
            selector.unregister(oldest)
            del strays[oldest]
            oldest.close()
        one.setblocking(False)
        strays[one] = bytearray()
        selector.register(one, selectors.EVENT_READ)

    def _greeted(
        self, one: socket.socket, strays: dict[socket.socket, bytearray]
    ) -> tuple[object, object] | None:
        """Read on in a connection's first message; its rank and kind once they are complete, UNKNOWN without a rank."""
        said = strays.get(one)
        if said is None:
            return None  # dropped while others were read
        try:
            nbytes = HEADER.size
            if len(said) >= nbytes:
                nbytes += HEADER.unpack(said[:nbytes])[0]
            if nbytes > HELLO_NBYTES:
                return UNKNOWN
            piece = one.recv(nbytes - len(said))  # and nothing of what follows
            said += piece
            if not piece:
                return UNKNOWN
            if len(said) < nbytes or nbytes == HEADER.size:
                return None
            word, rank, kind = json.loads(said[HEADER.size :])
            known = secrets.compare_digest(str(word).encode(), self.address.word.encode())
        except BlockingIOError:
            return None
        except (OSError, ValueError, TypeError, RecursionError):
            return UNKNOWN
        return (
            (rank, kind) if known and isinstance(rank, int) and isinstance(kind, str) else UNKNOWN
        )


class Leader:
    """The link as rank 0 has it."""

    def __init__(self, commands: Sequence[socket.socket], lives: Sequence[socket.socket]) -> None:
        self._commands, self._lives = commands, lives
        self._is_over = False
        background.watch("ranks", self._watch)

    def send(self, *command: object) -> None:
        """Send a command to all other ranks."""
        data = _framed(command)
        for one in self._commands:
            try:
                one.sendall(data)
            except OSError:  # `_watch` learns it too, and says why
                threading.Event().wait()

    def request(self, rank: int, command: Sequence[object], rows: Floats) -> Floats:
        """Send one rank a command with numbers, and return the numbers (n,) that it answers."""
        one = self._commands[rank - 1]
        try:
            one.sendall(_framed(command) + HEADER.pack(rows.nbytes) + rows.tobytes())
            return np.frombuffer(_received(one), np.float32)
        except OSError:  # as in `send`
            threading.Event().wait()
            raise

    def end(self) -> None:
        """Let the others end, as nothing more will come."""
        if self._is_over:
            return
        self._is_over = True
        for one in self._commands:
            with suppress(OSError):
                one.sendall(_framed(("end",)))

    def fail(self, why: str) -> None:
        """End this process and all others, and say why."""
        self._is_over = True
        for one in self._lives:
            with suppress(OSError):
                one.sendall(_framed((why,)))
        leave(why)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, one in enumerate(self._lives, 1):
                selector.register(one, selectors.EVENT_READ, rank)
            (key, _), *_ = selector.select()
            said = _last_words(key.fileobj)  # type: ignore[arg-type]  # a socket
        if not self._is_over:
            self.fail(f"rank {key.data} has ended: {said or 'its process is gone'}")


class Follower:
    """The link as another rank has it. Raises ConfigError if rank 0 cannot be reached."""

    def __init__(self, address: Address, rank: int) -> None:
        self._commands, self._life = (_connected(address, rank, kind) for kind in KINDS)
        self._is_over = threading.Event()
        background.watch("rank 0", self._watch)

    def receive(self) -> list:
        """Wait for the next command: awake for a moment, as a thread that is woken for each pass loses its core."""
        deadline = time.monotonic() + AWAKE_S
        while not select.select([self._commands], [], [], 0)[0] and time.monotonic() < deadline:
            os.sched_yield()
        try:
            command: list = json.loads(_received(self._commands))
        except (OSError, ValueError):
            threading.Event().wait()  # `_watch` ends the process
        if command[0] == "end":
            self._is_over.set()
        return command

    def rows(self) -> Floats:
        """Return the numbers (n,) that came with a command."""
        return np.frombuffer(_received(self._commands), np.float32)

    def answer(self, rows: Floats) -> None:
        """Give rank 0 the numbers that it asked for."""
        with suppress(OSError):  # `_watch` ends the process
            self._commands.sendall(HEADER.pack(rows.nbytes) + rows.tobytes())

    def fail(self, why: str) -> None:
        """Tell rank 0 why this process ends, and end it; rank 0 says it to the user."""
        self._is_over.set()
        with suppress(OSError):
            self._life.sendall(_framed((why,)))
        leave()

    def _watch(self) -> None:
        said = _last_words(self._life)
        if not self._is_over.wait(0.5):
            leave(None if said else "rank 0 has ended: its process is gone")


def leave(why: str | None = None) -> None:
    """End the process at once; other threads may wait for ranks that do not answer any more."""
    if why is not None:
        os.write(2, f"error: {why}\n".encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


def _connected(address: Address, rank: int, kind: str) -> socket.socket:
    try:
        one = _opened(socket.create_connection((address.host, address.port), WAIT_S))
        one.sendall(_framed((address.word, rank, kind)))
    except OSError as error:
        raise ConfigError(
            f"rank {rank} cannot reach rank 0 at {address.host}, port {address.port}: {reason(error)}"
        ) from error
    return one


def _opened(one: socket.socket) -> socket.socket:
    """Make a connection of ranks: it waits as long as it takes, and delays nothing."""
    one.settimeout(None)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


def _framed(command: Sequence[object]) -> bytes:
    data = json.dumps(command, separators=(",", ":"), default=int).encode()
    return HEADER.pack(len(data)) + data


def _received(one: socket.socket) -> bytes:
    """Return the next frame. Raises OSError where there is no whole one any more."""

    def exactly(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = one.recv(size - len(data))
            if not piece:
                raise OSError("the connection is closed")
            data += piece
        return bytes(data)

    return exactly(HEADER.unpack(exactly(HEADER.size))[0])


def _last_words(one: socket.socket) -> str | None:
    """Wait until the other end says something or is gone; return what it said."""
    try:
        return str(json.loads(_received(one))[0])
    except (OSError, ValueError):
        return None
