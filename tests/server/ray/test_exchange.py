"""A request to a replica over a connection: whole answers, parts as they come, and replicas that go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forerun.server.ray.exchange import ForwardedRequest, Head, Lease, Lost, exchange
from forerun.server.ray.metrics import joined

HEADERS = [
    (b"Host", b"a.example"),
    (b"Connection", b"keep-alive"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Authorization", b"Bearer key"),
    (b"X-Forerun-Ticket", b"forged"),
]
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/x y",
    "raw_path": b"/v1/x%20y",
    "query_string": b"a=b",
    "headers": HEADERS,
}
QUESTION = ForwardedRequest.of(SCOPE, b'{"n": 1}')


def asked(answer: Callable[[asyncio.StreamWriter], None]) -> tuple[list[Head | bytes], bytes]:
    """What is read of an answer, until it is lost, and what was asked."""
    heard = b""

    async def run() -> list[Head | bytes]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal heard
            heard = await reader.readuntil(b'{"n": 1}')
            answer(writer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        found: list[Head | bytes] = []
        async with server:
            try:
                async for event in exchange(QUESTION, Lease(host, port, "t1")):
                    found.append(event)
            except Lost:
                found.append(b"LOST")
        return found

    return asyncio.run(run()), heard


def test_an_answer_comes_whole_with_its_head():
    found, heard = asked(
        lambda w: w.write(b"HTTP/1.1 201 x\r\ncontent-length: 2\r\na: b\r\n\r\nok")
    )
    assert found[0] == Head(201, ((b"content-length", b"2"), (b"a", b"b")))
    assert b"".join(found[1:]) == b"ok"
    head, _, body = heard.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/x%20y?a=b HTTP/1.1\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines.count(b"x-forerun-ticket: t1") == 1
    assert lines.count(b"host: a.example") == 1
    assert b"authorization: bearer key" in lines
    assert b"forged" not in head
    assert b"transfer-encoding" not in head.lower()
    assert body == QUESTION.body


def test_a_stream_comes_in_its_parts():
    parts = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    found, _ = asked(lambda w: w.write(parts))
    assert found[1:] == [b"ab", b"c"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"no HTTP at all\r\n\r\n",
    ],
)
def test_an_answer_that_ends_too_soon_is_lost(sent):
    assert asked(lambda w: w.write(sent))[0][-1] == b"LOST"


def test_nobody_there_is_lost():
    async def run() -> None:
        async for _ in exchange(QUESTION, Lease("127.0.0.1", 1, "t")):
            pass

    with pytest.raises(Lost):
        asyncio.run(run())


def page(value: int) -> str:
    return (
        "# HELP forerun:prompt_tokens_total Tokens.\n# TYPE forerun:prompt_tokens_total counter\n"
        f'forerun:prompt_tokens_total{{engine="0",model_name="m"}} {value}\n'
        "# HELP forerun:wait_seconds Wait.\n# TYPE forerun:wait_seconds histogram\n"
        f'forerun:wait_seconds_bucket{{engine="0",le="+Inf"}} {value}\n'
        f'forerun:wait_seconds_count{{engine="0"}} {value}\nforerun:wait_seconds_sum{{engine="0"}} 1\n'
    )


def test_metrics_of_replicas_stand_side_by_side():
    text = joined({"a": page(3), "b": page(4)}, "forerun:", 7).decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    counts = {s.labels["engine"]: s.value for s in families["forerun:prompt_tokens"].samples}
    assert counts == {"a": 3, "b": 4}
    assert {s.labels["engine"] for s in families["forerun:wait_seconds"].samples} == {"a", "b"}
    assert families["forerun:replicas"].samples[0].value == 2
    assert families["forerun:retries"].samples[0].value == 7


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
@pytest.mark.parametrize(
    ("path", "kind", "is_held"),
    [
        ("/v1/messages", b"text/event-stream", True),
        ("/v1/completions", b"text/event-stream; charset=utf-8", False),
        ("/api/chat", b"application/x-ndjson", False),
    ],
)
def test_a_stream_has_not_begun_with_an_event_that_says_nothing(path, kind, is_held):
    """Until the second part another replica can be asked, whose answer begins anew."""
    from forerun.server.ray.gateway import _Sending

    sent = []

    async def send(message):
        sent.append(message.get("body"))

    async def ask() -> None:
        head = Head(200, ((b"content-type", kind),))
        sending = _Sending(path, send)
        await sending.add(head)
        await sending.add(b"first")
        assert sending.has_begun != is_held
        await sending.add(head)
        for part in (b"first", b"second"):
            await sending.add(part)

    asyncio.run(ask())
    assert b"".join(filter(None, sent)) == (b"firstsecond" if is_held else b"firstfirstsecond")


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
def test_a_lost_replica_is_told_in_the_form_of_the_stream():
    from forerun.server.ray.gateway import _event, lost

    line = _event(lost(), "/api/chat", 3)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {"error": lost().message}
    for path in ("/v1/messages", "/v1/responses", "/v1/completions"):
        assert _event(lost(), path, 3).endswith(b"}\n\n")
