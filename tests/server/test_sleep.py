"""Models that nobody asks sleep, and the next request wakes them: nothing that runs is cut, lists answer meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest

from forerun.llm import LLM
from forerun.server.errors import ApiError
from forerun.server.sleep import seconds_of
from tests.server.conftest import post, running, wait_until

BODY = {"prompt": "One two three one two three one", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def load(default_model) -> Callable[[], LLM]:
    """What loads the model anew each time."""
    return lambda: LLM(str(default_model), max_model_len=512, max_num_seqs=2, drafter="suffix")


def state(url: str) -> str:
    return httpx.get(f"{url}/v1/models").json()["data"][0]["status"]["value"]


def text(url: str) -> str:
    return post(url, "/v1/completions", BODY)["choices"][0]["text"]


def test_a_model_that_nobody_asks_sleeps_and_wakes(load) -> None:
    with running(load, sleep_idle_seconds=0.6) as (url, service):
        said = text(url)
        wait_until(lambda: state(url) == "unloaded")
        assert service.worker.llm is None
        for path in ("/health", "/v1/models", "/api/tags", "/api/ps", "/version", "/metrics", "/"):
            assert httpx.get(f"{url}{path}").status_code == 200, path
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] == 512
        assert httpx.get(f"{url}/api/ps").json() == {"models": []}
        assert state(url) == "unloaded", "lists wake nobody"
        assert text(url) == said
        assert state(url) == "loaded"
        assert text(url) == said


def test_a_stream_is_never_cut(load) -> None:
    long = BODY | {"max_tokens": 450, "stream": True, "ignore_eos": True, "max_draft": 0}
    with running(load, sleep_idle_seconds=0.05) as (url, _):
        with httpx.stream("POST", f"{url}/v1/completions", json=long, timeout=60) as answer:
            found = answer.iter_lines()
            next(found)
            time.sleep(0.2)
            assert post(url, "/models/unload", {}) == {"success": False}
            lines = [line for line in found if line]
        assert lines[-1] == "data: [DONE]"
        assert any('"finish_reason":"length"' in line for line in lines)
        wait_until(lambda: state(url) == "unloaded")


def test_nobody_sleeps_by_default(load) -> None:
    with running(load) as (url, _):
        said = text(url)
        time.sleep(1.5)
        assert state(url) == "loaded"
        assert post(url, "/models/unload", {}) == {"success": True}
        assert state(url) == "unloaded"
        assert text(url) == said


def test_ollamas_keep_alive_says_how_long_a_model_stays(load) -> None:
    asked = {"prompt": "Hi", "stream": False, "options": {"num_predict": 2}}

    def until() -> float:
        (found,) = httpx.get(f"{url}/api/ps").json()["models"]
        return (datetime.fromisoformat(found["expires_at"]) - datetime.now(UTC)).total_seconds()

    with running(load) as (url, _):
        assert until() > 1e9
        post(url, "/api/generate", asked | {"keep_alive": "10m"})
        assert 590 < until() <= 600
        post(url, "/api/generate", asked | {"keep_alive": -1})
        assert until() > 1e9
        post(url, "/api/generate", asked | {"keep_alive": 30})
        text(url)
        assert until() > 1e9, "each request says so anew"
        post(url, "/api/chat", {"messages": [{"role": "user", "content": "Hi"}], "stream": False,
                                "options": {"num_predict": 2}, "keep_alive": 0})  # fmt: skip
        wait_until(lambda: state(url) == "unloaded")
        assert post(url, "/api/generate", {})["done_reason"] == "load"
        assert state(url) == "loaded"
        assert post(url, "/api/generate", {"keep_alive": "0s"})["done_reason"] == "unload"
        assert state(url) == "unloaded"
        error = post(url, "/api/generate", asked | {"keep_alive": "soon"}, 400)["error"]
        assert "keep_alive must be seconds, or a time such as 5m" in error


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), ("", None), (0, 0), ("0", 0), (1.5, 1.5), ("5m", 300), ("1h30m", 5400),
     ("250ms", 0.25), (-1, math.inf), ("-1", math.inf), ("-1m", math.inf)],
)  # fmt: skip
def test_times_as_ollama_writes_them(given, seconds) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", [True, [], "5 minutes", "m", {}])
def test_what_is_no_time_is_refused(given) -> None:
    with pytest.raises(ApiError, match="keep_alive must be"):
        seconds_of(given)
