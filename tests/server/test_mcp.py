"""MCP servers: those that are named are asked, as the protocol says, and no others; what goes wrong is one line."""

from __future__ import annotations

import json

import httpx
import pytest

from forerun.core.errors import ConfigError
from forerun.server import mcp as client
from forerun.server.api.mcp import ToolBox
from forerun.server.config import ServerConfig
from forerun.server.mcp import McpAddress, McpError, McpServer
from tests.server.conftest import post, running
from tests.server.mcp_servers import ADD, WEATHER, mcp_server

LIST, CALL = "/mcp-rest/tools/list", "/mcp-rest/tools/call"
PARIS = {"server_id": "weather", "name": "get_weather", "arguments": {"city": "Paris"}}


@pytest.fixture
def mcp():
    with mcp_server() as found:
        yield found


def server_at(url: str, **headers: str) -> McpServer:
    return McpServer(McpAddress("weather", url, headers))


@pytest.mark.parametrize("streams", [True, False])
def test_a_session_begins_once_and_its_headers_go_with_every_message(mcp, streams):
    url, server = mcp
    server.streams = streams
    asked = server_at(url, authorization="Bearer secret")
    assert asked.tools() == [WEATHER, ADD]
    result = asked.call("get_weather", {"city": "Paris"})
    assert result == {
        "content": [{"type": "text", "text": "It is 21 degrees in Paris."}],
        "isError": False,
    }
    answers = ["answer"] * streams  # to the ping of a stream
    begin = ["initialize", *answers, "notifications/initialized"]
    pages = ["tools/list", *answers] * 2
    assert server.methods() == [*begin, *pages, "tools/call", *answers]
    for path, headers, message in server.seen:
        assert path == "/mcp?a=1"
        assert headers["authorization"] == "Bearer secret"
        assert headers["accept"] == "application/json, text/event-stream"
        assert message["jsonrpc"] == "2.0"
        if message.get("method") != "initialize" and message.get("id") != "p":
            assert headers["mcp-session-id"] == "first"
            assert headers["mcp-protocol-version"] == "2025-06-18"
    assert [one for _, _, one in server.seen if "result" in one] == [
        {"jsonrpc": "2.0", "id": "p", "result": {}}
    ] * (4 * streams)


def test_a_session_that_the_server_has_forgotten_begins_anew(mcp):
    url, server = mcp
    asked = server_at(url)
    asked.tools()
    server.sessions = {"second"}
    assert asked.call("get_weather", {"city": "Rome"})["isError"] is False
    assert server.seen[-1][1]["mcp-session-id"] == "second"


@pytest.mark.parametrize(
    ("reply", "status", "message"),
    [
        (b"<html>", 200, "weather answers what is not JSON"),
        (b"", 500, "weather answers 500 Internal Server Error"),
        (b"", 302, "weather answers 302 Found"),
        (b"[]", 200, "weather has not answered initialize"),
        (b'{"id": 1, "error": {"code": -1, "message": "a\\nb"}}', 200, "weather: a b"),
        (b'{"id": 1, "result": 1}', 200, "weather has answered without a result"),
        (b"1" * ((1 << 20) + 1), 200, "weather answers with more than 1 MiB"),
        (
            b'{"id": 1, "result": {"protocolVersion": "2024-11-05"}}',
            200,
            "weather speaks revision '2024-11-05' of MCP; it must be 2025-11-25",
        ),
    ],
)
def test_what_is_no_answer_is_an_error_of_one_line(mcp, reply, status, message):
    url, server = mcp
    server.reply, server.status = lambda asked: reply, status
    with pytest.raises(McpError, match=message.replace("[", r"\[")):
        server_at(url).tools()
    assert [path for path, _, _ in server.seen] == ["/mcp?a=1"]  # no redirect is followed


@pytest.mark.parametrize("page", [[], [ADD]], ids=["empty", "full"])
def test_pages_of_tools_end(mcp, page, monkeypatch):
    """However many a server has, or says it has."""
    url, server = mcp
    monkeypatch.setattr(client, "MAX_TOOLS", 3)
    server.pages = [page] * 9
    with pytest.raises(McpError, match="weather has more than 3 tools"):
        server_at(url).tools()
    assert server.methods().count("tools/list") <= 4


def test_a_server_that_takes_too_long_is_left(mcp, monkeypatch):
    url, _ = mcp
    monkeypatch.setattr(client, "TIMEOUT_S", 0.0001)
    with pytest.raises(McpError, match=r"took more than|timed out"):
        server_at(url).tools()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["http://localhost:1/mcp"], ["localhost"]),
        (["a=https://x.org/mcp?b=c", "b=http://[::1]:2"], ["a", "b"]),
        (["http://x.org/?a=b"], ["x.org"]),
    ],
)
def test_addresses_have_names(given, names):
    assert [one.name for one in McpAddress.all(given)] == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["ftp://x"], r"--mcp-server must be \[NAME=\]URL, http or https, got 'ftp://x'"),
        (["x"], "got 'x'"),
        (["a=http://x y"], "got 'http://x y'"),
        (["http://x\r\nhost: y"], "got 'http://x"),
        (["a b=http://x"], "an MCP server's name is letters, digits, . and -, got 'a b'"),
        (["http://x/1", "http://x/2"], "two MCP servers are called x: give --mcp-server NAME=URL"),
    ],
)
def test_what_is_no_address_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        McpAddress.all(given)


def test_a_file_of_other_programs_lists_servers(tmp_path):
    file = tmp_path / "mcp.json"

    def read(document: object) -> list[McpAddress]:
        file.write_text(json.dumps(document))
        return McpAddress.all([str(file)])

    entry = {"url": "https://x.org/mcp", "headers": {"authorization": "Bearer a"}}
    assert read({"mcpServers": {"a": entry}}) == [McpAddress("a", entry["url"], entry["headers"])]
    with pytest.raises(ConfigError, match=r"b is a program to start; only servers with a url"):
        read({"mcpServers": {"b": {"command": "npx"}}})
    with pytest.raises(ConfigError, match=r"mcp\.json must be"):
        read({"servers": {}})
    with pytest.raises(ConfigError, match="headers of the MCP server a must be printable"):
        read({"mcpServers": {"a": entry | {"headers": {"x": "a\r\nb: c"}}}})


def test_tools_without_a_key_are_not_for_others():
    given = {"mcp_server": ("http://localhost:1",), "host": "0.0.0.0"}
    with pytest.raises(ConfigError, match="needs --api-key-file"):
        ToolBox(ServerConfig(**given))
    ToolBox(ServerConfig(**given, api_key="secret")).close()


def test_the_server_lists_and_calls_tools_of_those_that_were_named(llm, mcp):
    mcp_url, server = mcp
    servers = (f"weather={mcp_url}", "gone=http://127.0.0.1:1/mcp")
    with running(lambda: llm, mcp_server=servers, api_key="secret") as (url, _):
        assert httpx.get(url + LIST).status_code == 401
        head = {"authorization": "Bearer secret"}
        weather, gone = httpx.get(url + LIST, headers=head).json()["servers"]
        assert weather == {"server_id": "weather", "tools": [WEATHER, ADD], "error": None}
        assert gone["error"] == "gone does not answer: Connection refused"

        def call(status: int = 200, **fields: object) -> dict:
            answer = httpx.post(url + CALL, json=PARIS | fields, headers=head)
            assert answer.status_code == status, answer.text
            return answer.json()

        assert call()["content"][0]["text"] == "It is 21 degrees in Paris."
        assert call(arguments={})["isError"] is True
        message = call(400, server_id=mcp_url)["error"]["message"]
        assert message == f"server_id must be one of weather, gone, got '{mcp_url}'"
        assert call(400, arguments=[])["error"]["param"] == "arguments"
        assert "Connection refused" in call(502, server_id="gone")["error"]["message"]
    assert {path for path, _, _ in server.seen} == {"/mcp?a=1"}


def test_a_server_without_tools_says_so(url):
    assert httpx.get(url + LIST).json() == {"servers": []}
    message = post(url, CALL, PARIS, 501)["error"]["message"]
    assert message == "there are no tools: start the server with --mcp-server URL"
