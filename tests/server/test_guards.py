"""Web pages of elsewhere are kept out, as browsers would send them; programs and our own page are let in."""

from __future__ import annotations

import socket

import httpx
import pytest

from forerun.server.config import ServerConfig
from forerun.server.middleware import OriginCheck
from tests.server.conftest import running

BODY = {"prompt": "a", "max_tokens": 1}


def code(config: ServerConfig, host: str, origin: str = "") -> str | None:
    """Why a request is refused; None if it is not."""
    headers = {b"host": host.encode(), **({b"origin": origin.encode()} if origin else {})}
    error = OriginCheck(None, config).refused("/", headers)
    return None if error is None else error.code


def ask(url: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=BODY, headers=headers, timeout=60)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "a", "127.0.0.1.evil.example"]
)
def test_a_name_that_a_stranger_may_own_is_refused(url, host):
    for path in ("/", "/v1/models", "/metrics", "/health", "/static/page.js"):
        answer = httpx.get(url + path, headers={"host": host})
        assert answer.status_code == 421
        assert "--allowed-hosts NAME" in answer.json()["error"]["message"]
    assert ask(url, host=host).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000", "me.localhost."]
)
def test_names_of_this_machine_are_its_own(url, host):
    assert ask(url, host=host).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3000", "file://"]
)
def test_pages_of_elsewhere_are_refused(url, origin):
    answer = ask(url, origin=origin)
    assert answer.status_code == 403
    assert origin in answer.json()["error"]["message"]
    assert httpx.get(f"{url}/v1/models", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize("route", ["POST /v1/completions", "GET /health", "GET /nowhere"])
def test_two_ways_to_say_where_a_request_ends_are_refused(url, route):
    hidden = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = (
        f"{route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {5 + len(hidden)}\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(head.encode() + b"0\r\n\r\n" + hidden)
        found = b"".join(iter(lambda: client.recv(65536), b""))
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"send one of them" in found
    assert found.count(b"HTTP/1.1") == 1  # what follows is not a request


def test_its_own_page_is_let_in(url):
    assert ask(url, origin=url).status_code == 200
    assert httpx.get(url, headers={"origin": url}).status_code == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
@pytest.mark.parametrize("sign", ["origin", "sec-fetch-site", "sec-fetch-mode"])
def test_the_body_of_a_page_must_be_called_json(url, kind, sign):
    headers = {"content-type": kind} if kind else {}
    answer = httpx.post(f"{url}/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 200  # of a program
    headers[sign] = url
    answer = httpx.post(f"{url}/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 415
    message = answer.json()["error"]["message"]
    assert kind in message
    assert "-H 'content-type: application/json'" in message


@pytest.mark.parametrize(
    "kind",
    [
        *("application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"),
        *("application/octet-stream", "json"),
    ],
)
def test_all_that_is_json_is_read(url, kind):
    headers = {"content-type": kind}
    answer = httpx.post(f"{url}/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "origin", ["app://obsidian.md", "tauri://localhost", "vscode-webview://1a", "vscode-file://b"]
)
def test_pages_inside_desktop_programs_are_let_in(url, origin):
    answer = ask(url, origin=origin)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "x-forerun-ignored" in answer.headers["access-control-expose-headers"]
    asks = {"access-control-request-method": "POST", "origin": origin}
    assert httpx.options(f"{url}/v1/completions", headers=asks).status_code == 200
    asks["origin"] = f"http://evil.example/{origin}"
    answer = httpx.options(f"{url}/v1/completions", headers=asks)
    assert answer.status_code == 403
    assert answer.headers["access-control-allow-origin"] == asks["origin"]  # to read why


def test_hosts_and_origins_can_be_allowed(llm):
    allowed = {"allowed_hosts": ("box.example",), "allowed_origins": ("http://app.example",)}
    with running(lambda: llm, **allowed) as (url, _):
        assert ask(url, host="Box.example:80").status_code == 200
        assert ask(url, host="evil.example").status_code == 421
        answer = ask(url, origin="http://app.example")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://app.example"
        assert ask(url, origin="http://evil.example").status_code == 403


def test_a_server_of_a_network_is_reached_by_address_and_name():
    config = ServerConfig(host="0.0.0.0")
    own = (socket.gethostname(), socket.getfqdn())
    for host in (
        "192.168.1.7:8000",
        "10.0.0.1",
        "box",
        "box.local",
        "forerun.default.svc.cluster.local",
        *own,
    ):
        assert code(config, host) is None, host
        assert code(config, host, f"http://{host}") is None, host
    assert code(config, "evil.example") == "host_not_allowed"
    assert code(ServerConfig(host="0.0.0.0", allowed_hosts=("*",)), "evil.example") is None


def test_a_key_makes_every_name_fine_but_no_origin():
    config = ServerConfig(host="0.0.0.0", api_key="secret")
    assert code(config, "api.example") is None
    assert code(config, "api.example", "https://api.example") is None
    assert code(config, "api.example", "https://evil.example") == "origin_not_allowed"
