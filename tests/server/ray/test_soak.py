"""Thousands of requests while replicas are killed, one after the other: all are answered, with the right tokens."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server.ray.conftest import expected_of, kill, pids_of_replicas, replicas
from tests.server.ray.test_replicas import follow

pytestmark = [pytest.mark.ray, pytest.mark.slow]
NUM_REQUESTS, EACH, NUM_NEW, CLIENTS = 5000, 200, 8, 12
WORDS = [
    "bread",
    "clock",
    "garden",
    "silver",
    "ladder",
    "storm",
    "window",
    "paper",
    "bridge",
    "salt",
    "candle",
    "drum",
]


def test_nothing_is_lost_or_wrong(default_model):
    rng = random.Random(0)
    prompts = [" ".join(rng.choices(WORDS, k=rng.randint(5, 80))) for _ in range(60)]
    expected = expected_of(default_model, prompts, NUM_NEW)
    outcomes: Counter[str] = Counter()
    count, lock = itertools.count(1), threading.Lock()

    with replicas(default_model, 2) as (server, url, _), httpx.Client(timeout=180) as client:

        def one(number: int) -> None:
            prompt = prompts[number % len(prompts)]
            if number % 5 == 0:
                text, errors = follow(url, prompt, NUM_NEW)
                what = "ended" if errors else "streamed"
                right = expected[prompt].startswith(text) if errors else text == expected[prompt]
            else:
                body = {"prompt": prompt, "temperature": 0, "max_tokens": NUM_NEW}
                answer = client.post(f"{url}/v1/completions", json=body)
                what = str(answer.status_code)
                right = what == "200" and answer.json()["choices"][0]["text"] == expected[prompt]
            with lock:
                outcomes[what if right else f"{what}, wrong"] += 1
                if next(count) % EACH == 0:
                    pids = pids_of_replicas(server)
                    if pids:
                        kill(pids[rng.randrange(len(pids))])
                        outcomes["killed"] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(one, range(NUM_REQUESTS)))
        page = client.get(f"{url}/metrics").text
    print(outcomes, [line for line in page.splitlines() if "retries_total " in line])
    assert outcomes.keys() <= {"200", "streamed", "ended", "killed"}
    assert outcomes["200"] == NUM_REQUESTS * 4 // 5
    assert outcomes["streamed"] + outcomes["ended"] == NUM_REQUESTS // 5
    assert outcomes["killed"] >= NUM_REQUESTS // EACH * 0.8
