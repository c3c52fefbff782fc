"""`forerun serve` as a process: how it begins and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import apart, status_mb, wait_until

pytestmark = pytest.mark.slow

SMALL = ("--max-model-len", "1024", "--max-num-seqs", "2", "-d", "suffix")
LONG = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "temperature": 2, "stream": True}


class Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.text, self.began = url, "", threading.Event()

    def run(self) -> None:
        try:
            with httpx.stream(
                "POST", f"{self.url}/v1/completions", json=LONG, timeout=120
            ) as answer:
                for part in answer.iter_text():
                    self.text += part
                    self.began.set()
        except httpx.HTTPError as error:
            self.text += f"broken: {error}"


@contextmanager
def streaming(model: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], Reader]]:
    """A server with an answer that has begun; at the end it has ended."""
    with apart(model, *SMALL, *flags, drains=False) as (server, url, _):
        reader = Reader(url)
        reader.start()
        assert reader.began.wait(60)
        yield server, reader
        reader.join(10)


def is_open(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_sigterm_lets_an_answer_finish_and_exits_0(default_model):
    with streaming(default_model, "--drain-timeout", "100") as (server, reader):
        server.send_signal(signal.SIGTERM)
        assert "1 request has 100 s to finish" in server.stderr.readline()
        wait_until(lambda: not is_open(reader.url))
        assert server.wait(120) == 0
    assert '"finish_reason":"length"' in reader.text
    assert reader.text.endswith("data: [DONE]\n\n")


def test_what_runs_when_the_time_is_over_is_ended_with_an_error(default_model):
    with streaming(default_model, "--drain-timeout", "0.2") as (server, reader):
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    assert "shutting down" in reader.text
    assert reader.text.endswith("data: [DONE]\n\n")


def test_a_second_signal_ends_it_at_once(default_model):
    with streaming(default_model) as (server, _):
        server.send_signal(signal.SIGTERM)
        server.stderr.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(5) == 128 + signal.SIGTERM


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "forerun", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_signal_in_the_first_seconds_ends_it_cleanly(default_model):
    """Whatever works beside the engine then."""
    for delay_s in (0, 0, 0.1, 0.2, 0.3, 0.5, 0.7, 1):
        with apart(default_model, *SMALL, drains=False) as (server, _, _):
            time.sleep(delay_s)
            server.send_signal(signal.SIGTERM)
            assert (server.wait(60), server.stderr.read()) == (0, ""), delay_s


def test_mistakes_are_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = run("--port", str(port))
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"error: port {port} of 127.0.0.1 is in use")
    missing = run(str(tmp_path / "none.gguf"), "--port", "0")
    assert missing.returncode == 2
    assert missing.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in missing.stderr
    shared = run("-d", "recycling", "--no-shared-drafts")
    assert shared.returncode == 2
    assert "which --no-shared-drafts forbids" in shared.stderr


def test_a_dropped_model_gives_its_memory_back_and_a_signal_waits_for_the_other(
    default_model, tmp_path
):
    """Two names of one file: each time only one of them is there."""
    (tmp_path / "other.gguf").symlink_to(default_model)
    flags = (str(tmp_path / "other.gguf"), "--models-max", "1", "--drain-timeout", "100")
    with apart(default_model, *SMALL, *flags) as (server, url, _):
        names = [one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]]
        assert names[1] == "other"
        sizes = []
        for name in names * 3:
            body = {"model": name, "prompt": "Once", "max_tokens": 8}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            sizes.append(status_mb(server))
        assert max(sizes) < 1.15 * sizes[0], sizes  # a model is a quarter of the process
        reader = Reader(url)
        reader.start()
        assert reader.began.wait(60)
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
        reader.join(10)
    assert reader.text.endswith("data: [DONE]\n\n")


def test_the_page_is_opened_once_the_model_is_ready(default_model, tmp_path, monkeypatch):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\nsleep 3\n')  # one that does not end
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    with apart(default_model, *SMALL, "--open") as (_, url, _said):
        wait_until(opened.exists)
        assert httpx.get(url).status_code == 200
    assert opened.read_text() == f"{url}\n"
