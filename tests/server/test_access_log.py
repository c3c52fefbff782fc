"""The access log: a line for each request, with no word of it."""

from __future__ import annotations

import logging

import httpx

from tests.server.conftest import running


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


def test_no_word_of_a_prompt_is_logged(llm, caplog):
    caplog.set_level(logging.DEBUG)
    body = {"prompt": "swordfish", "max_tokens": 2, "stop": "herring", "user": "haddock"}
    with running(lambda: llm, log_requests=True) as (url, _):
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        httpx.post(f"{url}/v1/completions", json=body | {"prompt": {"swordfish": 1}})
    ours = [one for one in caplog.records if one.name.startswith(("forerun", "uvicorn"))]
    assert any("answer 2 tokens" in one.getMessage() for one in ours)
    logged = " ".join(one.getMessage() for one in ours)
    assert not any(word in logged for word in ("swordfish", "herring", "haddock"))
