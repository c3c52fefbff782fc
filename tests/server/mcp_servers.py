"""An MCP server written by the protocol's words alone (streamable HTTP), in a thread of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "inputSchema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ADD = {"name": "add", "inputSchema": {"type": "object"}}


class Mcp:
    """What the server is to do, and what was sent to it."""

    def __init__(self) -> None:
        self.pages = [[WEATHER], [ADD]]
        self.version = "2025-06-18"
        self.streams = True
        self.sessions = {"first"}
        self.seen: list[tuple[str, dict, dict]] = []
        self.reply: Callable[[dict], bytes | None] = lambda message: None
        """Bytes that are sent in place of an answer."""
        self.status = 200

    def result(self, message: dict) -> dict:
        params = message.get("params", {})
        if message["method"] == "initialize":
            info = {"name": "test", "version": "1"}
            return {"protocolVersion": self.version, "capabilities": {}, "serverInfo": info}
        if message["method"] == "tools/list":
            at = int(params.get("cursor", 0))
            more = {"nextCursor": str(at + 1)} if at + 1 < len(self.pages) else {}
            return {"tools": self.pages[at], **more}
        city = params["arguments"].get("city")
        text = f"It is 21 degrees in {city}." if city else "no city"
        return {"content": [{"type": "text", "text": text}], "isError": not city}

    def methods(self) -> list[str]:
        return [message.get("method", "answer") for _, _, message in self.seen]


class Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # an answer is sent in two parts
    mcp: Mcp

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.mcp.seen.append((self.path, headers, message))
        session = headers.get("mcp-session-id")
        if session is not None and session not in self.mcp.sessions:
            self.answer(404, b"")
        elif "id" not in message or "method" not in message:
            self.answer(202, b"")
        elif (sent := self.mcp.reply(message)) is not None:
            self.answer(self.mcp.status, sent)
        else:
            self.reply(message)

    def reply(self, message: dict) -> None:
        own = (
            {"mcp-session-id": min(self.mcp.sessions)} if message["method"] == "initialize" else {}
        )
        document = {"jsonrpc": "2.0", "id": message["id"], "result": self.mcp.result(message)}
        body = json.dumps(document).encode()
        if self.mcp.streams:
            ping = json.dumps({"jsonrpc": "2.0", "id": "p", "method": "ping"}).encode()
            note = b'{"jsonrpc": "2.0", "method": "notifications/progress"}'
            events = (b"data: " + each + b"\r\n\r\n" for each in (ping, note, body))
            self.answer(200, b": hello\r\nid: 1\r\n" + b"".join(events), "text/event-stream", own)
        else:
            self.answer(200, body, "application/json; charset=utf-8", own)

    def answer(
        self, status: int, body: bytes, kind: str = "application/json", own: dict | None = None
    ) -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/elsewhere")
        for name, value in {
            "content-type": kind,
            "content-length": len(body),
            **(own or {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def mcp_server() -> Iterator[tuple[str, Mcp]]:
    """Its address, and what it does."""
    mcp = Mcp()
    kind = type("OwnHandler", (Handler,), {"mcp": mcp})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp?a=1", mcp
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
