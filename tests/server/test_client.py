"""A client of OpenAI's API against a small server that says whatever a test wants."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forerun.core.errors import ConfigError
from forerun.server.client import Remote, RemoteError

Reply = tuple[int, bytes]


def event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


TEXT = event(delta={"role": "assistant"}) + event(delta={"content": "Hi"})
END = event(delta={}, finish_reason="stop")
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
MODELS = b'{"data": [{"id": "tiny"}]}'


class Server(ThreadingHTTPServer):
    """Answers every request with what `replies` holds for its path, and notes what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: dict[str, Reply] = {"/v1/models": (200, MODELS)}
        self.asked: list[dict] = []
        self.keys: list[str | None] = []
        self.missing = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def streams(self, text: bytes) -> None:
        self.replies["/v1/chat/completions"] = (200, text)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Server = self.server
        server.keys.append(self.headers["Authorization"])
        status, body = server.replies.get(self.path, (404, b'{"detail":"Not Found"}'))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + server.missing))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        self.do_GET()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def chunks(remote: Remote) -> list:
    with remote.stream("/chat/completions", {"messages": []}) as stream:
        return [*stream]


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://localhost:8000/v1", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("https://some.where/openai/v2", "https://some.where/openai/v2"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_address_is_read_as_people_type_it(typed, url):
    assert Remote.of(typed).url == url


@pytest.mark.parametrize("typed", ["", "ftp://x/v1", "http://", "http://host:port/v1", "http://[x"])
def test_what_is_no_address_is_refused(typed):
    with pytest.raises(ConfigError, match="--url must be"):
        Remote.of(typed)


def test_a_stream_is_read_to_its_end(server):
    server.streams(b": ping\n\n" + TEXT + END + USAGE + DONE)
    found = chunks(Remote.of(server.url, "secret"))
    assert "".join(chunk.text for chunk in found) == "Hi"
    assert [chunk.finish_reason for chunk in found if chunk.finish_reason] == ["stop"]
    assert found[-1].usage == {"completion_tokens": 2}
    assert server.asked == [{"messages": [], "stream": True}]
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize("text", [b"", TEXT])
@pytest.mark.parametrize("missing", [0, 100])
def test_a_stream_without_an_end_is_an_error(server, text, missing):
    server.streams(text)
    server.missing = missing
    with pytest.raises(RemoteError, match="ended the answer early"):
        chunks(Remote.of(server.url))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + b'data: {"error": {"message": "shutting down"}}\n\n', "early: shutting down"),
        (b"data: {half\n\n", "sent a chunk that is not JSON"),
    ],
)
def test_what_a_stream_says_is_wrong_is_told(server, text, message):
    server.streams(text)
    with pytest.raises(RemoteError, match=message):
        chunks(Remote.of(server.url))


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b'{"error": {"message": "who are you?"}}', r"give it with --api-key .*who are you\?"),
        (404, b'{"detail": "Not Found"}', "is --url right"),
        (429, b'{"error": {"message": "too many"}}', "refuses with 429: too many"),
        (500, b"<html>\nbroken</html>", "refuses with 500: <html> broken"),
        (200, b"<html>", "is not an OpenAI server"),
        (200, b'{"data": 3}', "is not an OpenAI server"),
        (200, b'{"data": []}', "serves no model"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(server, status, body, message):
    server.replies["/v1/models"] = (status, body)
    with pytest.raises(RemoteError, match=message) as caught:
        Remote.of(server.url).model()
    assert "\n" not in str(caught.value)


def test_nobody_who_listens_is_an_error():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(RemoteError, match=f"{url}/v1 does not answer: Connection refused"):
        Remote.of(url).models()


def test_a_model_is_chosen_by_its_name(server):
    remote = Remote.of(server.url)
    assert remote.model()["id"] == remote.model("tiny")["id"] == "tiny"
    with pytest.raises(ConfigError, match="unknown model 'tini': did you mean 'tiny'"):
        remote.model("tini")
    server.replies["/v1/models"] = (200, b'{"data": [{"id": "a"}, {"id": "b"}]}')
    assert remote.model("b")["id"] == "b"
    with pytest.raises(ConfigError, match="choose with --model"):
        remote.model()
