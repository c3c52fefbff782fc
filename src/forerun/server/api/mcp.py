"""Tools of MCP servers, for the page: `/mcp-rest/tools/list` and `/mcp-rest/tools/call`, as LiteLLM's proxy has them.

Only the servers that the operator has named are asked. The page asks its user before each call; a client that
calls by itself is not asked, so a server with tools that others reach must have a key.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from forerun.core.errors import ConfigError
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, must_be, unsupported
from forerun.server.http import JsonResponse
from forerun.server.mcp import McpAddress, McpError, McpServer
from forerun.server.models import AllModels
from forerun.server.openapi import answers, errors
from forerun.server.schema import RequestBody

router, lists = APIRouter(route_class=JsonRoute), APIRouter()
_AT_ONCE = 4
"""Questions that wait for servers, each in a thread."""


class ToolBox:
    """The servers that may be asked."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigError for an address that is none, and where others could call tools without a key."""
        addresses = McpAddress.all(config.mcp_server)
        if addresses and not config.is_local and config.api_key is None:
            raise ConfigError(
                "--mcp-server on an address that others reach needs --api-key-file: who has no key calls no tools"
            )
        self.servers = {one.name: McpServer(one) for one in addresses}
        self._threads = ThreadPoolExecutor(_AT_ONCE, "mcp")

    async def tools(self) -> list[dict[str, Any]]:
        """List the tools of each server, or why there are none."""
        loop = asyncio.get_running_loop()
        asked = [loop.run_in_executor(self._threads, one.tools) for one in self.servers.values()]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [_listed(name, one) for name, one in zip(self.servers, found, strict=True)]

    async def call(self, server: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool. Raises ApiError."""
        if not self.servers:
            raise unsupported("there are no tools: start the server with --mcp-server URL")
        if server not in self.servers:
            raise must_be("server_id", f"one of {', '.join(self.servers)}", server)
        call = self.servers[server].call
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, call, name, arguments)
        except McpError as error:
            raise ApiError(502, str(error), type="server_error") from error

    def close(self) -> None:
        """Begin no other call."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _listed(name: str, found: list[dict[str, Any]] | BaseException) -> dict[str, Any]:
    if isinstance(found, McpError):
        return {"server_id": name, "tools": [], "error": str(found)}
    if isinstance(found, BaseException):
        raise found
    return {"server_id": name, "tools": found, "error": None}


class CallRequest(RequestBody):
    """A call of a tool."""

    server_id: str
    """Which of the servers has it."""
    name: str
    """The tool's name there."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """As its schema says."""


@lists.get("/mcp-rest/tools/list", responses=answers())
async def tools(served: AllModels, request: Request) -> Response:
    """List the MCP servers that may be asked, with their tools."""
    box: ToolBox = request.app.state.tools
    return JsonResponse({"servers": await box.tools()})


@router.post("/mcp-rest/tools/call", responses=answers() | errors((502,)))
async def call(served: AllModels, request: JsonRequest, body: CallRequest) -> Response:
    """Call a tool of an MCP server; the result is the protocol's: `content` and `isError`."""
    box: ToolBox = request.app.state.tools
    return JsonResponse(await box.call(body.server_id, body.name, body.arguments))
