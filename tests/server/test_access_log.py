"""The access log: a line for each request, with no word of it."""

from __future__ import annotations

import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from forerun.llm import LLM
from forerun.server import access_log
from tests.server.conftest import apart, running


def lines_of(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "forerun.requests"]


def test_each_request_that_ended_has_a_line(llm, caplog):
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
    assert " POST /v1/completions 400, invalid_request_error, total " in lines[2]
    assert "\n" not in lines[3]
    assert " 404, invalid_request_error, " in lines[3]
    assert " GET /health 421, host_not_allowed, total " in lines[4]
    assert "swordfish" not in " ".join(lines)


def test_without_it_nothing_is_logged(url, caplog):
    httpx.get(f"{url}/health")
    assert not lines_of(caplog)


def test_no_word_of_a_prompt_is_logged(llm, caplog):
    caplog.set_level(logging.DEBUG)
    body = {"prompt": "swordfish", "max_tokens": 2, "stop": "herring", "user": "haddock"}
    with running(lambda: llm, log_requests=True) as (url, _):
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        for more in ({"prompt": {"swordfish": 1}}, {"logit_bias": {"swordfish": 1}}):
            httpx.post(f"{url}/v1/completions", json=body | more)
    ours = [one for one in caplog.records if one.name.startswith(("forerun", "uvicorn"))]
    assert any("answer 2 tokens" in one.getMessage() for one in ours)
    logged = " ".join(one.getMessage() for one in ours)
    assert not any(word in logged for word in ("swordfish", "herring", "haddock"))


def test_a_refused_request_says_why(llm, caplog):
    said = {"messages": [{"role": "user", "content": "swordfish"}], "max_tokens": 1}
    with running(lambda: llm, log_requests=True) as (url, _):
        for more in ({"best_of": 3}, {"stop": [1]}):
            httpx.post(f"{url}/v1/chat/completions", json=said | more, timeout=60)
    assert [
        re.search(r"POST /v1/chat/completions 400, (.*), total", line)[1]
        for line in lines_of(caplog)
    ] == ["invalid_request_error best_of", "invalid_request_error stop"]
    assert "swordfish" not in caplog.text


def test_serve_shows_what_has_no_effect(default_model):
    """As a process: nothing here chooses what is logged."""
    messages = [{"role": "user", "content": "swordfish"}]
    asked = {"messages": messages, "max_tokens": 1, "store": True, "num_ctx": 8192, "foo_bar": 1}
    small = ("--max-model-len", "512", "-d", "none", "-t", "1")
    with apart(default_model, *small, drains=False) as (server, url, _):
        for more in ({"tools": [{"type": "web_search"}]}, {"best_of": 3}, {"stop": [1]}):
            httpx.post(f"{url}/v1/chat/completions", json=asked | more, timeout=60)
        server.terminate()
        said = server.stderr.read()
    for name in ("store", "num_ctx", "foo_bar", "tools of type web_search"):
        assert said.count(f"field '{name}' of a request has no effect: ") == 1, said
    assert "POST /v1/chat/completions" not in said
    assert "swordfish" not in said


def test_a_long_prompt_is_logged_as_it_is_read(default_model, monkeypatch, caplog):
    monkeypatch.setattr(access_log, "FIRST_S", 0.05)
    monkeypatch.setattr(access_log, "EACH_S", 0.05)
    sizes = {"max_model_len": 768, "max_num_seqs": 1, "prefill_chunk": 16}
    slow = LLM(str(default_model), drafter="none", **sizes)
    step = slow.engine.step

    def slowed():
        time.sleep(0.02)
        return step()

    slow.engine.step = slowed
    text = "swordfish " + "One two three four five six seven eight nine ten. " * 20
    body = {"prompt": text, "max_tokens": 2}
    with running(lambda: slow, log_requests=True) as (url, _):
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(httpx.post, f"{url}/v1/completions", json=body) for _ in range(2)]
        assert all(one.result().status_code == 200 for one in asked)
    lines = lines_of(caplog)
    told = [line for line in lines if re.search(r" \d+ read", line)]
    for line in told:
        assert re.search(r"POST /v1/completions, prompt \d+ tokens \(\+\d+ cached\), ", line)
    assert any(re.search(r" read, \d+ s left$", line) for line in told)
    own = [re.search(r"(\d+) read", line)[1] for line in told if line[:20] == told[0][:20]]
    assert len(own) > 2
    assert [*map(int, own)] == sorted(map(int, own))
    assert [line for line in lines if line.endswith("tokens, waiting for a place")]
    assert "swordfish" not in caplog.text
