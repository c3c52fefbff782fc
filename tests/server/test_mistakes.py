"""What users get wrong is told by the name they sent, and what they leave out has one meaning everywhere."""

from __future__ import annotations

import logging
import subprocess
import sys

import httpx
import pytest

from forerun.core import params
from forerun.core.params import MAX_N, SamplingParams
from forerun.server import openai
from forerun.server.config import DEFAULT_MAX_TOKENS, ServerConfig
from tests.server.conftest import running

SAID = [{"role": "user", "content": "One two three one two three"}]
LONG = "word " * 440


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_known_roles_are_taken(url, role):
    body = {"messages": [{"role": role, "content": "a"}, *SAID], "max_tokens": 1}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_minus_one_is_until_the_end_of_the_context_everywhere(url, llm):
    assert SamplingParams(max_tokens=-1) == SamplingParams(max_tokens=None)
    open_end = {"ignore_eos": True, "temperature": 0}
    prompt, long = "word " * 480, [{"role": "user", "content": LONG}]
    for path, body, field in (
        ("/v1/completions", {"prompt": prompt, "max_tokens": -1}, "completion_tokens"),
        ("/v1/completions", {"prompt": prompt, "n_predict": -1}, "completion_tokens"),
        (
            "/v1/chat/completions",
            {"messages": long, "max_tokens": -1},
            "completion_tokens",
        ),
        ("/v1/responses", {"input": LONG, "max_output_tokens": -1}, "output_tokens"),
        (
            "/v1/messages",
            {"messages": long, "max_tokens": -1},
            "output_tokens",
        ),
    ):
        answer = httpx.post(url + path, json=body | open_end, timeout=60)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        num_prompt = sum(
            usage.get(name, 0)
            for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
        )
        assert usage[field] + num_prompt == llm.max_len


def test_an_answer_without_max_tokens_ends(url, monkeypatch):
    body = {"messages": SAID, "ignore_eos": True, "temperature": 0}
    assert DEFAULT_MAX_TOKENS == 2048
    monkeypatch.setattr(openai, "DEFAULT_MAX_TOKENS", 9)
    found = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    assert found["usage"]["completion_tokens"] == 9
    assert found["choices"][0]["finish_reason"] == "length"
    found = httpx.post(f"{url}/v1/chat/completions", json=body | {"max_tokens": 12}).json()
    assert found["usage"]["completion_tokens"] == 12


def test_n_has_one_limit():
    assert ServerConfig().max_n == MAX_N
    SamplingParams(n=MAX_N)


def test_a_high_temperature_is_noted_once(caplog):
    params._note_hot.cache_clear()
    SamplingParams(temperature=2)
    assert not caplog.records
    SamplingParams(temperature=2.5)
    SamplingParams(temperature=3)
    assert [one.getMessage()[:19] for one in caplog.records] == ["temperature above 2"]


def lines_of(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "forerun.requests"]


def test_each_request_that_ended_has_a_line(llm, caplog):
    caplog.set_level(logging.INFO, "forerun.requests")
    with running(lambda: llm, log_requests=True) as (url, _):
        body = {"prompt": "swordfish one two one two", "max_tokens": 6, "temperature": 0}
        ids = []
        for path, given in (
            ("/v1/completions", body),
            ("/v1/completions", body | {"stream": True}),
            ("/v1/completions", {"prompt": ""}),
            ("/nowhere%0Ax%20y", {}),
        ):
            ids.append(httpx.post(url + path, json=given, timeout=60).headers["x-request-id"])
        ids.append(
            httpx.get(f"{url}/health", headers={"host": "evil.example"}).headers["x-request-id"]
        )
    lines = lines_of(caplog)
    assert [line.split()[0] for line in lines] == ids
    for line in lines[:2]:
        assert " POST /v1/completions 200, prompt " in line
        assert "answer 6 tokens (length), first " in line
        assert " drafted, total " in line
    assert " POST /v1/completions 400, total " in lines[2]
    assert "\n" not in lines[3]
    assert " 404, " in lines[3]
    assert " GET /health 421, total " in lines[4]
    assert "swordfish" not in " ".join(lines)


def test_without_it_nothing_is_logged(url, caplog):
    caplog.set_level(logging.INFO, "forerun.requests")
    httpx.get(f"{url}/health")
    assert not lines_of(caplog)


def test_a_model_that_there_is_not_is_told_before_anything_listens(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    for model in ("no-such-model", tmp_path / "none.gguf", tmp_path / "bad.gguf"):
        command = [sys.executable, "-m", "forerun", "serve", str(model), "--port", "0"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert found.returncode == 2
        assert found.stderr.startswith("error: ")
        assert len(found.stderr.splitlines()) == 1
