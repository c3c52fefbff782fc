"""A server in this process on a port of its own, over the default model, that always drafts in full."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from forerun.llm import LLM
from forerun.server.config import ServerConfig
from forerun.server.models import ModelSource, ServedModels
from forerun.server.run import Server, bind
from forerun.server.service import Service


@pytest.fixture(scope="session")
def llm(default_model) -> LLM:
    """Nothing shared between requests: a repeated one is guessed right and wrong as the first."""
    drafter = "prompt_lookup:ngram_min=1"
    sizes = {"max_model_len": 512, "max_num_seqs": 4}
    return LLM(str(default_model), drafter=drafter, controller=False, **sizes)


@contextmanager
def running(load: Callable[[], LLM], **settings: object) -> Iterator[tuple[str, Service]]:
    """The address of a server, and its service; with the model loaded unless `wait` is false."""
    own = {"served_model_name": ("tiny",), "strict_model_name": True}
    with running_models([ModelSource("tiny", load)], **{**own, **settings}) as (url, served):
        yield url, served.services[0]


@contextmanager
def running_models(
    sources: Sequence[ModelSource], *, budget: int | None = None, **settings: object
) -> Iterator[tuple[str, ServedModels]]:
    """The address of a server of models; with the first one loaded unless `wait` is false."""
    wait, sampling = settings.pop("wait", True), settings.pop("sampling", None)
    config = ServerConfig(**{"drain_timeout": 5, **settings})
    listener = bind(config.host, 0)
    port = listener.getsockname()[1]
    served = ServedModels(sources, config, sampling, budget)
    server = Server(served, lambda line: None)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        while wait and not served.is_ready and thread.is_alive():
            time.sleep(0.005)
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{port}", served
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def apart(
    model: Path, *flags: str, drains: bool = True, ends: bool = False
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A server as a process of its own, its address, and what it said until it was ready; the rest is drained.

    `ends`: it is asked to end, as what it has started ends with it.
    """
    command = [sys.executable, "-m", "forerun", "serve", str(model), "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = ""
            for line in server.stderr:
                said += line
                if line.startswith("ready"):
                    break
            if drains:
                threading.Thread(target=server.stderr.read, daemon=True).start()
            found = re.search(r"http://\S+", said)
            assert found, said
            yield server, found[0], said
        finally:
            if ends and server.poll() is None:
                server.terminate()
                with suppress(subprocess.TimeoutExpired):
                    server.wait(60)
            server.kill()


def status_mb(server: subprocess.Popen[str], field: str = "VmRSS") -> float:
    """A process's memory now; of `VmHWM` the most it had."""
    text = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    return int(re.search(rf"{field}:\s+(\d+)", text)[1]) / 1024


def post(url: str, route: str, body: dict, status: int = 200) -> dict:
    """The document of an answer that has this status."""
    answer = httpx.post(f"{url}{route}", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def chunks(url: str, route: str, body: dict) -> list[dict]:
    """What is streamed, without comments and the end mark."""
    text = httpx.post(f"{url}{route}", json=body | {"stream": True}, timeout=60).text
    found = [each.partition("data: ")[2] for each in text.split("\n\n")]
    return [json.loads(event) for event in found if event not in ("", "[DONE]")]


@contextmanager
def openai_client(url: str) -> Iterator[OpenAI]:
    """OpenAI's own client, which asks once."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def wait_until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    end_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def json_schema(schema: object) -> dict:
    """OpenAI's `response_format` of a schema."""
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def tool(name: str, **properties: object) -> dict:
    """A function whose arguments are these."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture(scope="session")
def served(llm) -> Iterator[tuple[str, Service]]:
    with running(lambda: llm) as found:
        yield found


@pytest.fixture(scope="session")
def url(served) -> str:
    return served[0]


@pytest.fixture(scope="session")
def client(url) -> Iterator[OpenAI]:
    with openai_client(url) as made:
        yield made
