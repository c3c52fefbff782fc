"""A client that disappears gives its rows back: no step but the one that runs is taken for it."""

from __future__ import annotations

import json
import logging
import socket
import threading

import httpx
import pytest

from forerun.core.types import Event
from forerun.llm import LLM
from forerun.server.service import Service
from tests.server.conftest import running, wait_until

TEXT = "One two three four five six seven eight nine ten. " * 40
SAID = [{"role": "user", "content": TEXT}]
ENDLESS = {"max_tokens": 400, "ignore_eos": True}
REQUESTS = {
    "reading": ("/v1/chat/completions", {"messages": SAID, "stream": True}),
    "reading, not streamed": ("/v1/chat/completions", {"messages": SAID}),
    "writing": ("/v1/completions", {"prompt": "One", "stream": True, **ENDLESS}),
    "writing, not streamed": ("/v1/completions", {"prompt": "One", **ENDLESS}),
    "several": ("/v1/completions", {"prompt": ["One", "Two", TEXT], "n": 2, **ENDLESS}),
    "responses": ("/v1/responses", {"input": TEXT, "stream": True}),
    "messages": ("/v1/messages", {"messages": SAID, "stream": True, "max_tokens": 400}),
    "ollama": ("/api/chat", {"messages": SAID}),
    "embeddings": ("/v1/embeddings", {"input": [TEXT] * 30}),
    "rerank": ("/v1/rerank", {"query": "one", "documents": [TEXT] * 30}),
}


class Held:
    """A server whose engine begins no step that a test does not let it take."""

    def __init__(self, url: str, service: Service, llm: LLM) -> None:
        self.url, self.engine = url, llm.engine
        self.num_begun = 0
        self._jobs, self._step = service.worker._jobs, llm.engine.step
        self._permits = threading.Semaphore(0)
        llm.engine.step = self._held

    def _held(self) -> list[Event]:
        self.num_begun += 1
        self._permits.acquire(timeout=20)
        return self._step()

    def step(self, count: int = 1) -> None:
        """End the steps that have begun, and begin the next one."""
        for _ in range(count):
            wanted = self.num_begun + 1
            self._permits.release()
            wait_until(lambda: self.num_begun == wanted)  # noqa: B023

    def hear(self) -> None:
        """Wait until the server has told the engine of something."""
        wait_until(lambda: self._jobs.qsize() > 0)

    def end(self) -> None:
        """End the last step."""
        self._permits.release()
        wait_until(lambda: not self.engine.has_work)


@pytest.fixture(scope="module")
def held(default_model):
    sizes = {"max_model_len": 768, "max_num_seqs": 2, "prefill_chunk": 16}
    llm = LLM(str(default_model), drafter="none", **sizes)
    with running(lambda: llm, embeddings=True) as (url, service):
        yield Held(url, service, llm)


def asked(url: str, route: str, body: dict) -> socket.socket:
    """The connection of a request whose answer is not read."""
    text = json.dumps(body)
    head = f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    client = socket.create_connection(("127.0.0.1", httpx.URL(url).port))
    client.sendall(f"{head}content-length: {len(text)}\r\n\r\n{text}".encode())
    return client


@pytest.mark.parametrize("what", REQUESTS)
def test_no_step_begins_for_who_has_left(held, what, caplog):
    before = held.num_begun
    with asked(held.url, *REQUESTS[what]):
        wait_until(lambda: held.num_begun > before)
        held.step(2)
    held.hear()
    held.end()
    assert held.num_begun == before + 3
    assert held.engine.cache.pool.num_used == 0
    assert not held.engine.scheduler.waiting
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_who_leaves_the_queue_is_never_read(held):
    before, scheduler = held.num_begun, held.engine.scheduler
    with asked(held.url, "/v1/completions", {"prompt": ["One", "Two"], **ENDLESS}):
        wait_until(lambda: held.num_begun > before)
        with asked(held.url, "/v1/completions", {"prompt": TEXT, "max_tokens": 1}):
            held.hear()
            held.step(2)
            assert len(scheduler.running) == 2
            assert len(scheduler.waiting) == 1
        held.hear()
        held.step()
        assert len(scheduler.running) == 2
        assert not scheduler.waiting
    held.hear()
    held.end()
