"""Many requests at once, some of which are given up: every answer is the offline one, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random

import httpx
import pytest

from forerun.core.params import SamplingParams
from tests.server.conftest import running

pytestmark = pytest.mark.slow

NUM_REQUESTS, NUM_AT_ONCE, ABORTED = 1000, 100, 0.05


def test_a_thousand_requests_with_aborts_leave_nothing_behind(llm):
    prompts = [f"Count: {i}, {i + 1}, {i + 2}, {i}, {i + 1}," for i in range(20)]
    params = SamplingParams(temperature=0, max_tokens=8)
    expected = [out.outputs[0].text for out in llm.generate(prompts, params)]
    draw = random.Random(0)

    async def ask(client, url, number):
        body = {"prompt": prompts[number % 20], "max_tokens": 8, "temperature": 0}
        path = f"{url}/v1/completions"
        if draw.random() < ABORTED:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.post(path, json=body | {"max_tokens": 400, "ignore_eos": True})
            return None
        answer = await client.post(path, json=body)
        assert answer.status_code == 200
        return number % 20, answer.json()["choices"][0]["text"]

    async def all_of_them(url):
        limits = httpx.Limits(max_connections=NUM_AT_ONCE)
        async with httpx.AsyncClient(timeout=600, limits=limits) as client:
            return await asyncio.gather(*(ask(client, url, i) for i in range(NUM_REQUESTS)))

    with running(lambda: llm, max_queue=NUM_REQUESTS) as (url, service):
        found = [one for one in asyncio.run(all_of_them(url)) if one is not None]
        for _ in range(500):
            if not service.num_running:
                break
            asyncio.run(asyncio.sleep(0.02))
        assert service.num_running == 0
        assert len(found) > NUM_REQUESTS * (1 - 2 * ABORTED)
        assert all(text == expected[i] for i, text in found)
        engine = llm.engine
        assert not engine.requests
        assert not engine.scheduler.running
        assert not engine.scheduler.waiting
        assert engine.cache.pool.num_used == 0
        assert not llm.loop._handles
        gc.collect()
