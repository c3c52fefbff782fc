"""A server for a suite to ask, and what it drafted."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 120.0


@contextmanager
def served(model: str, log: Path, *arguments: str) -> Iterator[str]:
    """Run `forerun serve` on a free port until the block ends; gives its URL, without `/v1`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "forerun", "serve", model, *arguments]
    with log.open("w") as file:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=file, stderr=file)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START_S
        while not _healthy(url):
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start: see {log}")
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def drafted(url: str) -> dict[str, float]:
    """Tokens `drafted` and `accepted` since the server at a URL started."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    lines = re.findall(
        r"^forerun:spec_decode_num_(draft|accepted)_tokens_total\S* (\S+)", text, re.M
    )
    counts = {"drafted": 0.0, "accepted": 0.0}
    for name, value in lines:
        counts["drafted" if name == "draft" else name] += float(value)
    return counts
