"""Tools of MCP servers on the page: offered, shown, confirmed, called, and the answer goes on; `pytest -m browser`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.server.browser.page import answer_with, ended, expect, opened, send, streamed
from tests.server.conftest import running, wait_until
from tests.server.mcp_servers import mcp_server

pytestmark = pytest.mark.browser

ANSWER = streamed([("It is sunny.", {"content": "It is sunny."})])


def asks(*cities: str) -> str:
    """A stream of an answer that calls `get_weather` for each."""
    parts: list[tuple[str, dict]] = [("I look.", {"content": "I look."})]
    for index, city in enumerate(cities):
        begin = {"index": index, "id": f"call_{index}", "type": "function"}
        named = {**begin, "function": {"name": "get_weather", "arguments": ""}}
        given = {"index": index, "function": {"arguments": json.dumps({"city": city})}}
        parts += [("", {"tool_calls": [named]}), ("", {"tool_calls": [given]})]
    return streamed(parts)


@contextmanager
def on_page(browser, llm, mcp_url: str) -> Iterator:
    with (
        running(lambda: llm, mcp_server=(f"weather={mcp_url}",)) as (url, _),
        opened(browser, url) as page,
    ):
        yield page


def switch_on(page, name: str = "weather") -> None:
    page.click("#open-settings")
    page.get_by_role("checkbox", name=name).check()
    page.click("#settings .main")


def test_a_call_is_made_when_it_is_confirmed_and_the_answer_goes_on(browser, llm):
    with mcp_server() as (mcp_url, mcp), on_page(browser, llm, mcp_url) as page:
        bodies = answer_with(page, asks("Paris", "Rome"), ANSWER)
        send(page, "Hi")
        assert "tools" not in bodies[0]  # none is offered unless it is switched on
        bodies.clear()
        switch_on(page)
        assert "get_weather, add" in page.locator("#offered").inner_text()
        page.click("#new")
        send(page, "How is the weather?")
        names = [one["function"]["name"] for one in bodies[0]["tools"]]
        assert names == ["get_weather", "add"]
        cards = page.locator(".call")
        expect(cards).to_have_count(2)
        assert '"city": "Paris"' in cards.first.inner_text()
        assert "The model asks to send this to weather." in cards.first.inner_text()
        assert "tools/call" not in mcp.methods()
        page.reload()  # the question stays open
        cards.first.get_by_role("button", name="Call", exact=True).click()
        cards.first.locator("summary >> text=Result").wait_for()
        assert mcp.methods().count("tools/call") == 1
        assert len(bodies) == 1
        cards.last.get_by_role("button", name="Do not call").click()
        expect(page.locator(".assistant")).to_have_count(2)
        ended(page)
        assert mcp.methods().count("tools/call") == 1
        said = bodies[1]["messages"]
        assert [one["role"] for one in said] == ["user", "assistant", "tool", "tool"]
        assert said[1]["content"] == "I look."
        assert [one["id"] for one in said[1]["tool_calls"]] == ["call_0", "call_1"]
        assert said[2]["content"] == "It is 21 degrees in Paris."
        assert said[3]["content"] == "The user did not allow this call."
        assert page.locator(".assistant .text").last.inner_text() == "It is sunny."
        cards.first.locator("summary").click()
        assert cards.first.locator("details pre").inner_text() == "It is 21 degrees in Paris."
        page.locator(".assistant >> text=Regenerate").last.click()
        ended(page)
        assert bodies[2]["messages"] == said


def test_a_server_that_does_not_answer_is_named_and_a_call_to_it_is_an_error(browser, llm):
    with mcp_server() as (mcp_url, mcp), on_page(browser, llm, mcp_url) as page:
        answer_with(page, asks("Paris"), ANSWER)
        switch_on(page)
        send(page, "How is the weather?")
        mcp.reply, mcp.status = lambda message: b"", 500
        with page.expect_response("**/mcp-rest/tools/call"):
            page.get_by_role("button", name="Call", exact=True).click()
        page.locator(".call summary >> text=Error").wait_for()
        ended(page)
        page.locator(".call summary").click()
        said = page.locator(".call details pre").inner_text()
        assert said == "Error: weather answers 500 Internal Server Error"
        page.reload()
        page.click("#open-settings")
        page.locator("#tools >> text=weather answers 500").wait_for()


def test_without_such_servers_there_is_nothing_of_them(browser, url):
    with opened(browser, url) as page:
        page.locator("#model >> text=tiny").wait_for()
        page.click("#open-settings")
        assert page.locator("#tools").is_hidden()


REAL = """
import sys
try:
    from mcp.server.mcpserver import MCPServer as Server
    where = {"host": "127.0.0.1", "port": int(sys.argv[1])}
    app, run = Server("weather"), where
except ImportError:  # before version 2
    from mcp.server.fastmcp import FastMCP
    app, run = FastMCP("weather", host="127.0.0.1", port=int(sys.argv[1])), {}

@app.tool()
def get_weather(city: str) -> str:
    "The weather in a city, now."
    return f"Rain in {city}."

app.run("streamable-http", **run)
"""


@pytest.fixture
def real_server() -> Iterator[str]:
    """The protocol's own package, as a process."""
    pytest.importorskip("mcp", reason="the package mcp is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", REAL, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:

        def answers() -> bool:
            assert server.poll() is None
            with socket.socket() as asked:
                return asked.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_until(answers, 60)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()


def test_the_protocols_own_package_is_called_from_the_page(browser, llm, real_server):
    with on_page(browser, llm, real_server) as page:
        bodies = answer_with(page, asks("Paris"), ANSWER)
        switch_on(page)
        send(page, "How is the weather?")
        assert bodies[0]["tools"][0]["function"]["parameters"]["required"] == ["city"]
        page.get_by_role("button", name="Call", exact=True).click()
        expect(page.locator(".assistant")).to_have_count(2)
        ended(page)
        assert bodies[1]["messages"][-1]["content"] == "Rain in Paris."
