"""Many requests, some of which are given up: every answer is the offline one, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from pathlib import Path

import httpx
import pytest

from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from tests.server.conftest import running

pytestmark = pytest.mark.slow
pytest.importorskip("llguidance", reason="every fifth request has a form")

WAVE, NUM_AT_ONCE, ABORTED = 500, 100, 0.05
GROWTH_MB = 16
"""What the process may grow by after the second wave: clients and server are in it."""
FORM = r"[0-9]{2}, [0-9]{2}\."


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@pytest.mark.parametrize("num_requests", [2_000, 10_000])
def test_requests_with_aborts_leave_nothing_behind(llm, num_requests):
    prompts = [f"Count: {i}, {i + 1}, {i + 2}, {i}, {i + 1}," for i in range(20)]
    bodies = [
        {"prompt": text, "max_tokens": 8, "temperature": 0}
        | ({} if i % 5 else {"guided_regex": FORM})
        for i, text in enumerate(prompts)
    ]
    free = SamplingParams(temperature=0, max_tokens=8)
    form = StructuredOutputsParams(regex=FORM)
    bound = SamplingParams(temperature=0, max_tokens=8, structured_outputs=form)
    params = [free if i % 5 else bound for i in range(len(prompts))]
    expected = [out.outputs[0].text for out in llm.generate(prompts, params)]
    draw = random.Random(0)

    async def ask(client, url, number):
        body, path = bodies[number % len(bodies)], f"{url}/v1/completions"
        if draw.random() < ABORTED:
            endless = {"prompt": prompts[0], "max_tokens": 400, "ignore_eos": True}
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.post(path, json=endless | {"stream": draw.random() < 0.5})
            return None
        answer = await client.post(path, json=body)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == expected[number % len(bodies)]
        return number

    async def wave(client, url, start):
        numbers = range(start, start + WAVE)
        return await asyncio.gather(*(ask(client, url, number) for number in numbers))

    async def all_of_them(url):
        found, sizes = [], []
        limits = httpx.Limits(max_connections=NUM_AT_ONCE)
        async with httpx.AsyncClient(timeout=600, limits=limits) as client:
            for start in range(0, num_requests, WAVE):
                found += await wave(client, url, start)
                gc.collect()
                sizes.append(rss_mb())
        return [one for one in found if one is not None], sizes

    with running(lambda: llm, max_queue=WAVE) as (url, service):
        found, sizes = asyncio.run(all_of_them(url))
        assert len(found) > num_requests * (1 - 2 * ABORTED)
        assert sizes[-1] - sizes[1] < GROWTH_MB, sizes
        nothing_is_left(service, llm)


def nothing_is_left(service, llm):
    for _ in range(500):
        if not service.num_running:
            break
        time.sleep(0.02)
    assert service.num_running == 0
    engine = llm.engine
    assert not engine.sequences
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    assert engine.cache.pool.num_used == 0
    assert not llm.loop._requests
