"""The queue's bound holds for requests that come at once, and is asked before a prompt is read."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from forerun.server.config import ServerConfig
from tests.server.conftest import json_schema, running, wait_until

LONG = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True, "temperature": 2, "stream": True}
TEXT = json_schema({"type": "string", "minLength": 400})


def test_requests_of_one_new_schema_that_come_at_once_keep_to_the_bound(llm):
    """While the schema is compiled none of them runs yet."""
    body = LONG | {"response_format": TEXT, "ignore_eos": False}
    num_places = llm.config.max_num_seqs + 2

    async def ask(client: httpx.AsyncClient, url: str, all_told: asyncio.Barrier) -> int:
        async with client.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            await all_told.wait()
            return answer.status_code

    async def all_at_once(url: str) -> list[int]:
        all_told = asyncio.Barrier(30)
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
            return await asyncio.gather(*(ask(client, url, all_told) for _ in range(30)))

    with running(lambda: llm, max_queue=2) as (url, service):
        found = asyncio.run(all_at_once(url))
        assert sorted({*found}) == [200, 429]
        assert found.count(200) == num_places
        wait_until(lambda: not service.num_running)


TOO_LONG = "word " * 600
BODIES = {
    "/v1/completions": {"prompt": TOO_LONG},
    "/completion": {"prompt": TOO_LONG},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TOO_LONG}]},
    "/v1/embeddings": {"input": TOO_LONG},
}


def test_a_full_queue_refuses_before_it_reads_a_prompt(llm):
    """What would be refused as too long is not, as nobody has counted its tokens."""
    with running(lambda: llm, max_queue=0, embeddings=True) as (url, service):
        for route, body in BODIES.items():
            assert httpx.post(url + route, json=body, timeout=60).status_code == 400, route
        with httpx.stream("POST", f"{url}/v1/completions", json=LONG | {"n": 4}, timeout=60):
            for route, body in BODIES.items():
                refused = httpx.post(url + route, json=body, timeout=60)
                assert refused.status_code == 429, route
                assert refused.headers["retry-after"] == "1"
                assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        wait_until(lambda: not service.num_running)
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize(("wrong", "status"), [("wrong", 401), ("right", 415)])
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
def test_a_gateway_reads_no_body_of_who_has_not_the_key(wrong, status):
    from forerun.server.ray.gateway import Gateway

    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        raise AssertionError("the body is read")

    headers = [(b"x-api-key", wrong.encode()), (b"content-type", b"text/plain")]
    headers += [(b"sec-fetch-mode", b"no-cors")]  # a browser's, which may not call a body so
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    gateway = Gateway(None, ServerConfig(api_key="right"))
    asyncio.run(gateway(scope, receive, send))
    assert sent[0]["status"] == status
