"""A budget is the process's: the real server, with long prompts, stays within what it says when it starts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from forerun.model.kernels import native
from tests.server.conftest import apart, status_mb

pytestmark = pytest.mark.slow

SIZES = ("--max-num-seqs", "16", "--max-model-len", "4096")


def ask(url: str, number: int, num_tokens: int) -> dict[str, object]:
    """A prompt of about so many tokens, every second one sampled."""
    body = {
        "prompt": " ".join(f"line {(number * i) % 97}" for i in range(num_tokens // 4)),
        "max_tokens": 12,
        "temperature": number % 2 * 0.8,
        "seed": number,
        "ignore_eos": True,
    }
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=900)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_process_stays_within_what_it_says(default_model: Path) -> None:
    """Sixteen users of nearly all of the context, which one fills, then many that queue: all are answered."""
    if not native.available() or not Path("/proc/self/status").exists():
        pytest.skip("measured on Linux with the native kernels")
    budget = "430MiB"
    with apart(default_model, "--memory-budget", budget, *SIZES) as (server, url, words):
        assert "memory: at most 430 MiB" in words
        for count, num_tokens in ((16, 3000), (36, 200)):
            with ThreadPoolExecutor(count) as pool:
                found = [*pool.map(lambda i, n=num_tokens: ask(url, i, n), range(1, count + 1))]
            assert all(one["usage"]["completion_tokens"] == 12 for one in found)
        most = status_mb(server, "VmHWM")
    print(json.dumps({"budget": budget, "most": most}))
    assert most <= 430
