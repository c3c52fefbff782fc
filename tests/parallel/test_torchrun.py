"""Processes that torchrun starts, as users start them: drafted equals plain, and one that fails ends all."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("forerun._native")

FORERUN = (sys.executable, "-m", "forerun")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def torchrun(
    size: int, *arguments: object, nodes: int = 1, node: int = 0, port: int = 0
) -> list[str]:
    where = ("--nnodes", nodes, "--node-rank", node, "--nproc-per-node", size // nodes)
    where = (*where, "--master-addr", "127.0.0.1", "--master-port", port or free_port())
    command = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        *where,
        "--no-python",
        *FORERUN,
        *arguments,
    )
    return [*map(str, command)]


def run(size: int, *arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        torchrun(size, *arguments), capture_output=True, text=True, timeout=timeout, check=False
    )


def on_two_machines(
    *arguments: object, only_there: tuple[object, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run one rank on each of two nodes, the second with more options; what the first says."""
    port = free_port()
    there = torchrun(2, *arguments, *only_there, nodes=2, node=1, port=port)
    here = torchrun(2, *arguments, nodes=2, node=0, port=port)
    with subprocess.Popen(there, stderr=subprocess.PIPE, text=True) as other:
        done = subprocess.run(here, capture_output=True, text=True, timeout=120, check=False)
        other.communicate(timeout=60)
    return done


def verified(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("a b a b a b a b a b\nb a c a b a c a b a\n", encoding="utf-8")
    return path


def test_two_processes_draft_as_they_decode(tiny_gguf: Path, prompts: Path) -> None:
    """With what torchrun tells each; it takes as long to start as they do, and starts the others below."""
    options = ("-m", tiny_gguf, "-d", "recycling", "--prompts", prompts, "--json", "-n", 24)
    command = [*FORERUN, "verify", "--tensor-parallel-size", "2", *map(str, options)]
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    told |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    envs = [{**os.environ, **told, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    with subprocess.Popen(command, env=envs[1]) as other:
        first = subprocess.run(
            command, env=envs[0], capture_output=True, text=True, timeout=120, check=False
        )
        assert other.wait(60) == 0
    found = verified(first)
    assert found["identical"]
    assert found["accepted"] > 0
    assert found["rejected"] > 0


@pytest.mark.slow
def test_drafters_are_measured_beside_plain_decoding(default_model: Path) -> None:
    options = ("-m", default_model, "-d", "none,recycling", "--limit", 1, "-n", 16, "--json")
    found = verified(run(2, "bench", "--tensor-parallel-size", 2, *options, timeout=300))
    rows = {row["drafter"]: row for row in found["rows"] if row["category"] == "all"}
    assert found["provenance"]["processes"] == 2
    assert rows["recycling"]["identical"] == rows["recycling"]["prompts"] == 1
    assert rows["recycling"]["tau"] > rows["none"]["tau"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        ("-d", "auto", "--batch", 3),
        ("-d", "suffix", "--temperature", 1, "--seed", 7),
        ("-d", "lookahead", "--kv", "int8"),
        ("-d", "draft_model:model=self,head_bits=4", "--memory-budget", "800MiB"),
    ],
)
def test_the_default_model_drafts_as_it_decodes(
    default_model: Path, size: int, options: tuple[object, ...]
) -> None:
    where = ("verify", "--tensor-parallel-size", size, "-m", default_model)
    found = verified(run(size, *where, *options, "--limit", 4, "-n", 40, "--json", timeout=600))
    assert found["identical"]
    assert found["accepted"] > 0
    assert found["rejected"] > 0


@pytest.mark.slow
def test_machines_exchange_by_gloo(tiny_gguf: Path, prompts: Path) -> None:
    options = ("verify", "-tp", 2, "-m", tiny_gguf, "-d", "recycling", "--prompts", prompts)
    assert verified(on_two_machines(*options, "--json"))["identical"]


@pytest.mark.slow
def test_wrong_numbers_of_processes_are_one_line(tiny_gguf: Path) -> None:
    alone = subprocess.run(
        [*FORERUN, "generate", "a", "-m", str(tiny_gguf), "-tp", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 2
    assert re.fullmatch(
        r"error: --tensor-parallel-size 2 needs 2 processes: torchrun --nproc-per-node 2 .*\n",
        alone.stderr,
    )
    three = run(3, "generate", "a", "-m", tiny_gguf, "-tp", 2)
    assert "torchrun started 3 processes, but --tensor-parallel-size is 2" in three.stderr
    many = run(2, "generate", "a", "-m", tiny_gguf)
    assert "torchrun started 2 processes, but --tensor-parallel-size is 1" in many.stderr


@pytest.mark.slow
def test_ranks_with_other_options_do_not_start_together(tiny_gguf: Path) -> None:
    options = ("generate", "a", "--raw", "-tp", 2, "-m", tiny_gguf)
    done = on_two_machines(*options, only_there=("--head-bits", 8))
    assert "error: rank 1 has head_bits 8, rank 0 has None: start all ranks with" in done.stderr


@contextmanager
def served(model: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    options = ("serve", "-tp", 2, "-m", model, "--port", port, "-t", 1)
    server = subprocess.Popen(torchrun(2, *options), stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if line.startswith("ready"):
                break
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=60)


@pytest.mark.slow
def test_a_server_of_two_processes_reuses_prefixes_and_keeps_grammars(default_model: Path) -> None:
    pytest.importorskip("llguidance")
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": number}}
    text = "Count. " + " ".join(map(str, range(120))) + " What comes next?"
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "model": "m"}
    with served(default_model) as (_, url):
        asked = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps(body | {"temperature": 0, "response_format": form}).encode(),
            {"Content-Type": "application/json"},
        )
        first, second = (json.load(urllib.request.urlopen(asked, timeout=60)) for _ in range(2))
    assert isinstance(json.loads(first["choices"][0]["message"]["content"])["n"], int)
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(each) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_all_within_ten_seconds(default_model: Path, rank: int) -> None:
    with served(default_model) as (server, url):
        body = {
            "model": "m",
            "prompt": "One",
            "max_tokens": 2000,
            "stream": True,
            "ignore_eos": True,
        }
        asked = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            answer.readline()
            ranks = sorted(children(server.pid), key=_rank)
            start_s = time.monotonic()
            os.kill(ranks[rank], signal.SIGKILL)
            _, words = server.communicate(timeout=30)
        assert time.monotonic() - start_s < 10
        assert server.returncode != 0
        who = "rank 0 has ended" if rank == 0 else "rank 1 has ended"
        assert f"error: {who}: its process is gone" in words


def _rank(pid: int) -> int:
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(each[5:]) for each in environment if each.startswith(b"RANK="))
