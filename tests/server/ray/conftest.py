"""Replicas on a Ray of their own, as `forerun serve --replicas` starts them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from forerun.core.params import SamplingParams
from forerun.llm import LLM
from tests.server.conftest import apart


@contextmanager
def replicas(
    model: Path, num: int, *flags: str
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """As `apart`, with replicas of one thread each."""
    own = ("--replicas", str(num), "--threads", "1", *flags)
    with apart(model, *own, ends=True) as found:
        yield found


def expected_of(model: Path, prompts: Sequence[str], num_new: int) -> dict[str, str]:
    """What plain decoding in this process says to each prompt."""
    llm = LLM(str(model), drafter="none", max_model_len=512)
    found = llm.generate([*prompts], SamplingParams(temperature=0, max_tokens=num_new))
    return {out.prompt: out.outputs[0].text for out in found}


def pids_of_replicas(server: subprocess.Popen[str], name: str = "ServeReplica") -> list[int]:
    """Processes below the server that Ray calls replicas, or by another name."""
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
        if parent == server.pid and command.startswith(f"ray::{name}".encode()):
            found.append(pid)
    return sorted(found)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def listening(pid: int) -> list[str]:
    """Addresses that a process listens on."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)):
                inodes.add(found[1])
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    found = [row[1].split(":") for row in rows if row[3] == "0A" and row[9] in inodes]
    return [
        f"{socket.inet_ntoa(bytes.fromhex(host)[::-1])}:{int(port, 16)}" for host, port in found
    ]


def asked(address: str) -> int | None:
    """What an address answers to a request for the models; None for one that is not an HTTP server."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://{address}/v1/models", timeout=2).status_code
    return None
