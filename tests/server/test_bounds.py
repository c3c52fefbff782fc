"""What the server refuses, in OpenAI's words; what it keeps to itself; and clients that go away."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import httpx
import pytest

from forerun.core.errors import ConfigError
from forerun.server.config import ServerConfig
from forerun.server.run import bind
from tests.server.conftest import running, wait_until

LONG = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True, "temperature": 2}
JSON = {"content-type": "application/json"}
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
FIELDS = {"message", "type", "param", "code"}


def told(answer: httpx.Response) -> dict:
    """The error of an answer, which has OpenAI's form."""
    error = answer.json()["error"]
    assert error.keys() >= FIELDS
    assert answer.headers["content-type"] == "application/json"
    assert "\n" not in error["message"]
    return error


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nowhere", 404, "there is no /nowhere"),
        ("/health", 405, "POST is not allowed on /health (allowed: GET)"),
    ],
)
def test_a_route_that_there_is_not_is_named(url, path, status, words):
    answer = httpx.post(url + path, json={})
    assert answer.status_code == status
    assert words in told(answer)["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"a"', b"\xff", b"[" * 100_000, b'{"n": 1' + b"0" * 5000 + b"}"]
)
def test_a_body_that_is_no_object_is_refused(url, body):
    answer = httpx.post(f"{url}/v1/completions", content=body, headers=JSON, timeout=60)
    assert answer.status_code == 400
    assert told(answer)["message"].startswith("the body")


def test_fields_without_effect_change_nothing(url):
    body = {"prompt": "One two three", "max_tokens": 4, "temperature": 0}
    more = {"user": "me", "store": False, "top_n_sigma": -1.0, "cache_prompt": True, "seed": None}
    answers = [
        httpx.post(f"{url}/v1/completions", json=each, timeout=60).json()["choices"]
        for each in (body, body | more)
    ]
    assert answers[0] == answers[1]


def test_a_body_that_is_too_large_or_half_sent_is_refused(llm):
    with running(lambda: llm, max_body_mb=0.01, body_timeout=0.3) as (url, _):
        large = json.dumps({"prompt": "a" * 20_000})
        answer = httpx.post(f"{url}/v1/completions", content=large, headers=JSON)
        assert answer.status_code == 413
        assert "limit of 0.01 MB" in told(answer)["message"]
        pieces = (b"x" * 1000 for _ in range(20))  # sent in chunks, of no stated length
        cut = httpx.post(f"{url}/v1/completions", content=pieces, headers=JSON)
        assert cut.status_code == 413
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as half:
            half.sendall(f"{HEAD}content-length: 99\r\n\r\n{{".encode())
            half.settimeout(20)
            assert half.recv(12) == b"HTTP/1.1 408"
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_prompt_has_a_bound(llm):
    with running(lambda: llm, max_prompt_len=20) as (url, _):
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "word " * 30})
    error = told(answer)
    assert answer.status_code == 400
    assert "maximum prompt length is 20 tokens" in error["message"]
    assert error["n_ctx"] == 512


def test_the_key_guards_every_route_but_health(llm):
    with running(lambda: llm, api_key="secret") as (url, _):
        paths = [*httpx.get(f"{url}/openapi.json", headers={"x-api-key": "secret"}).json()["paths"]]
        assert "/metrics" in paths
        for path in (*paths, "/openapi.json", "/nowhere"):
            answer = httpx.get(url + path)
            assert answer.status_code == (200 if path == "/health" else 401), path
        assert told(answer)["code"] == "invalid_api_key"
        for headers in ({"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 401
        for headers in ({"authorization": "bearer secret"}, {"x-api-key": "secret"}):
            assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200


def test_pages_of_other_origins_are_let_in_only_if_told(llm, url):
    asked = {"origin": "http://a.example", "access-control-request-method": "POST"}
    refused = httpx.options(url, headers=asked)
    assert refused.status_code == 403
    assert "access-control-allow-methods" not in refused.headers
    origins = {"allowed_origins": ("http://a.example",), "api_key": "secret"}
    with running(lambda: llm, **origins) as (own, _):
        answer = httpx.options(f"{own}/v1/completions", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "http://a.example"
        other = httpx.options(f"{own}/v1/completions", headers=asked | {"origin": "http://b.c"})
        assert other.status_code == 403
        assert "access-control-allow-methods" not in other.headers


def test_200_connections_at_once_are_all_answered(served):
    url, service = served
    bodies = [
        {"prompt": f"{i % 5}, {i % 5 + 1},", "max_tokens": 2, "temperature": 0} for i in range(200)
    ]

    async def ask(client: httpx.AsyncClient, body: dict) -> str:
        answer = await client.post(f"{url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200
        return answer.json()["choices"][0]["text"]

    async def all_at_once() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits) as client:
            return await asyncio.gather(*(ask(client, body) for body in bodies))

    texts = asyncio.run(all_at_once())
    assert texts == texts[:5] * 40
    assert len({*texts[:5]}) > 1
    assert service.num_running == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_place(served, llm, stream):
    url, service = served
    aborted = llm.loop.served.finished["abort"]
    body = json.dumps(LONG | {"stream": stream}).encode()
    head = f"{HEAD}content-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(head.encode() + body)
        wait_until(lambda: llm.engine.sequences)
    wait_until(lambda: not service.num_running)
    assert not llm.engine.has_work
    assert llm.loop.served.finished["abort"] == aborted + 1


def test_health_is_503_until_the_model_is_there(llm):
    go = threading.Event()

    def load():
        go.wait(20)
        return llm

    with running(load, wait=False) as (url, service):
        for path in ("/health", "/v1/models", "/metrics"):
            answer = httpx.get(url + path)
            assert answer.status_code == 503
            assert told(answer)["type"] == "unavailable_error"
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "a"}).status_code == 503
        assert httpx.get(f"{url}/version").status_code == 200
        go.set()
        wait_until(lambda: service.worker.llm is not None)
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_an_address_that_cannot_be_had_is_told_in_words():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match="cannot listen on 203"):
        bind("203.0.113.1", 0)
    for wrong in ({"port": 70_000}, {"max_n": 0}, {"max_body_mb": 0}, {"api_key": " "}):
        with pytest.raises(ConfigError):
            ServerConfig(**wrong)
