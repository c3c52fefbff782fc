"""Ordinary requests with attacks between them: those are answered as offline, and memory stays where it was.

The server is a process of its own: its memory is the promise, not that of its clients.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import pytest

from forerun.core.params import SamplingParams
from tests.server.conftest import apart, status_mb
from tests.server.test_soak import GROWTH_MB, NUM_AT_ONCE, WAVE
from tests.text.test_template_process import LOOP

pytestmark = pytest.mark.slow
pytest.importorskip("llguidance", reason="every fifth request has a form")

HUGE = "The quick brown fox jumps over the lazy dog, 123 times. " * 64_000
BIASES = dict.fromkeys(map(str, range(49_000)), 1)
JSON = {"content-type": "application/json"}
SAID = [{"role": "user", "content": "a"}]
OWN_TEMPLATE = {"chat_template": LOOP}
EVIL = {"host": "evil.example"}, {"origin": "http://evil.example"}
ATTACKS: tuple[tuple[int, str, dict[str, object], dict[str, str]], ...] = (
    (400, "/v1/completions", {"prompt": HUGE}, JSON),
    (400, "/v1/chat/completions", {"messages": [{"role": "user", "content": HUGE}]}, JSON),
    (400, "/tokenize", {"prompt": HUGE}, JSON),
    (400, "/v1/completions", {"prompt": [1] * 50_000}, JSON),
    (400, "/v1/completions", {"prompt": "a", "n": 16, "prediction": HUGE[:300_000]}, JSON),
    (400, "/v1/completions", {"prompt": "a", "logit_bias": BIASES}, JSON),
    (400, "/v1/completions", {"prompt": "a", "stop": [1] * 90_000}, JSON),
    (400, "/v1/chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}, JSON),
    (400, "/apply-template", {"messages": SAID, "chat_template_kwargs": OWN_TEMPLATE}, JSON),
    (400, "/v1/completions", {"prompt": "a", "guided_regex": "\ud800"}, JSON),
    (413, "/v1/completions", {"prompt": HUGE + HUGE}, JSON),
    (
        403,
        "/v1/completions",
        {"prompt": "a"},
        {"content-type": "text/plain", "origin": "https://a.b"},
    ),
    (421, "/v1/completions", {"prompt": "a"}, JSON | EVIL[0]),
    (403, "/v1/completions", {"prompt": "a"}, JSON | EVIL[1]),
)
MAX_HALVES = 300
"""Half-open connections that are held at once: more than the server holds."""
FLAGS = (
    *("--max-model-len", "512", "--max-num-seqs", "4", "-d", "prompt_lookup:ngram_min=1"),
    *("--no-controller", "--max-queue", str(WAVE), "--max-connections", "250"),
    *("--idle-timeout", "20"),
)
WARM = 2
"""The wave from which on memory stays: by then each kind of request has come."""
IDLE = {
    f"forerun:{name}"
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
}


@dataclass
class AttackLoad:
    """Clients of all kinds. Each request is one of them by lot, and checks its answer."""

    server: subprocess.Popen[str]
    url: str
    prompts: list[str]
    expected: list[str]
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    counts: Counter[str] = field(default_factory=Counter)
    sizes: list[float] = field(default_factory=list)
    """The server's memory after each wave, in MB."""

    def __post_init__(self) -> None:
        self._halves: deque[asyncio.StreamWriter] = deque()
        self._attacks = [
            (status, path, json.dumps(body), head) for status, path, body, head in ATTACKS
        ]

    async def run(self, num_requests: int) -> None:
        limits = httpx.Limits(max_connections=NUM_AT_ONCE)
        async with httpx.AsyncClient(base_url=self.url, timeout=600, limits=limits) as client:
            for start in range(0, num_requests, WAVE):
                numbers = range(start, start + WAVE)
                await asyncio.gather(*(self._one(client, number) for number in numbers))
                self.sizes.append(status_mb(self.server))
        for writer in self._halves:
            writer.close()

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        lot = self.draw.randrange(25)
        kinds = {0: self._attack, 1: self._half, 2: self._leave}
        kind = kinds.get(lot, self._form if lot < 8 else self._plain)
        await kind(client, number)
        self.counts[kind.__name__.strip("_")] += 1

    def _body(self, number: int) -> dict[str, object]:
        text = self.prompts[number % len(self.prompts)]
        return {"prompt": text, "max_tokens": 8, "temperature": 0}

    async def _answer(self, client: httpx.AsyncClient, body: dict[str, object]) -> str:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text[:300]
        return answer.json()["choices"][0]["text"]

    async def _plain(self, client: httpx.AsyncClient, number: int) -> None:
        found = await self._answer(client, self._body(number))
        assert found == self.expected[number % len(self.expected)]

    async def _form(self, client: httpx.AsyncClient, number: int) -> None:
        """A form that no other request has."""
        form = {"guided_regex": rf" {number}, [a-c]{{3}}"}
        text, own = await self._answer(client, self._body(number) | form), f" {number}, "
        assert text[: len(own)] == own[: len(text)]
        assert {*text[len(own) :]} <= {*"abc"}

    async def _attack(self, client: httpx.AsyncClient, number: int) -> None:
        status, path, body, headers = self.draw.choice(self._attacks)
        answer = await client.post(path, content=body, headers=headers)
        assert answer.status_code == status, answer.text[:300]

    async def _half(self, client: httpx.AsyncClient, number: int) -> None:
        port = int(self.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: local")
        self._halves.append(writer)
        if len(self._halves) > MAX_HALVES:
            self._halves.popleft().close()

    async def _leave(self, client: httpx.AsyncClient, number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.post("/v1/completions", json=self._body(number) | {"max_tokens": 300})


@pytest.mark.parametrize("num_requests", [2_000, 10_000])
def test_attacks_change_no_answer_and_leave_nothing_behind(llm, default_model, num_requests):
    prompts = [f"Count: {i}, {i + 1}, {i + 2}, {i}, {i + 1}," for i in range(20)]
    greedy = SamplingParams(temperature=0, max_tokens=8)
    expected = [out.outputs[0].text for out in llm.generate(prompts, greedy)]
    with apart(default_model, *FLAGS) as (server, url, _):
        load = AttackLoad(server, url, prompts, expected)
        try:
            asyncio.run(load.run(num_requests))
        finally:
            print(dict(load.counts), [round(size) for size in load.sizes])
        nothing_runs(url)
    assert sum(load.counts.values()) == num_requests
    assert max(load.sizes[WARM:]) - load.sizes[WARM] < GROWTH_MB, load.sizes


def nothing_runs(url: str) -> None:
    """Nothing runs, waits or holds memory of the cache, soon after the last request."""
    for _ in range(500):
        page = httpx.get(f"{url}/metrics", timeout=60).text
        rows = [line.split() for line in page.splitlines() if line.partition("{")[0] in IDLE]
        if all(float(value) == 0 for _, value in rows):
            break
        time.sleep(0.02)
    assert [float(value) for _, value in rows] == [0.0] * len(IDLE), rows
