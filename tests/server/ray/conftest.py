"""Replicas on a Ray of their own, as `forerun serve --replicas` starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.conftest import apart


@contextmanager
def replicas(
    model: Path, num: int, *flags: str
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """As `apart`, with replicas of one thread each."""
    pytest.importorskip("ray")
    own = ("--replicas", str(num), "--threads", "1", *flags)
    with apart(model, *own, ends=True) as found:
        yield found


def pids_of_replicas(server: subprocess.Popen[str]) -> list[int]:
    """Processes below the server that Ray calls replicas."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = (int(re.search(r"\) . (\d+)", stat)[1]), command)
    found = []
    for pid, (parent, command) in parents.items():
        while parent in parents and parent != server.pid:
            parent = parents[parent][0]
        if parent == server.pid and command.startswith(b"ray::ServeReplica"):
            found.append(pid)
    return sorted(found)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
