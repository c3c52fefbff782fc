"""Starts servers quickly: a process that has imported everything, and forks for each.

The suite starts some three hundred servers, and to import torch takes seconds of a core. `shim.py` asks for one through
a socket, hands over its output, and stands for the server until that ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

MODULES = ("forerun.cli.main", "forerun.cli.commands.serve", "forerun.llm", "forerun.server.run")
POLL_S = 0.02


def serve(path: Path) -> None:
    """Wait for orders until killed."""
    for module in MODULES:
        __import__(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen(16)
        while True:
            order, _ = door.accept()
            if os.fork() == 0:
                door.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os._exit(_tend(order))
            order.close()


def _tend(order: socket.socket) -> int:
    """Run one server, and tell how it ended; if who asked is gone, so is it."""
    text, fds, _, _ = socket.recv_fds(order, 1 << 16, 2)
    pid = os.fork()
    if pid == 0:
        order.close()
        os.dup2(fds[0], 1)
        os.dup2(fds[1], 2)
        given = json.loads(text)
        os.chdir(given["folder"])
        _become(given["arguments"])
    order.send(f"{pid}\n".encode())
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            order.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            return 0
        if select.select([order], [], [], POLL_S)[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 0


def _become(arguments: list[str]) -> None:
    sys.argv = ["forerun", *arguments]
    code: object = 0
    try:
        from forerun.cli.main import main

        main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


def order(path: Path, arguments: list[str]) -> int:
    """Have a server run until it ends or this process is told to; its exit code."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(path))
        given = {"folder": os.getcwd(), "arguments": arguments}
        socket.send_fds(door, [json.dumps(given).encode()], [1, 2])
        said = door.makefile("r")
        pid = int(said.readline())
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, lambda number, frame: os.kill(pid, number))
        return int(said.readline() or 1)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
