"""The application: routers and middleware, and errors in the JSON of the API that was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

import forerun
from forerun.core.errors import CapacityError, RequestError
from forerun.server import openapi, pull, status, tokens
from forerun.server.access_log import IGNORED, AccessLog
from forerun.server.api import (
    anthropic,
    embeddings,
    llama_server,
    mcp,
    ollama,
    ollama_models,
    openai,
    rerank,
    responses,
)
from forerun.server.async_request import Closed
from forerun.server.errors import ApiError, of_exception, of_status
from forerun.server.http import error_response
from forerun.server.middleware import (
    DESKTOP,
    OPEN_ROUTES,
    ApiKeyCheck,
    HeadAsGet,
    OriginCheck,
)
from forerun.server.models import ServedModels
from forerun.server.page import page_routes

DIALECTS = (
    *(openai, responses, anthropic, ollama, ollama_models, llama_server),
    *(embeddings, rerank, tokens, pull, mcp),
)
"""The modules with a router of routes that take a JSON body."""
CLOSE_S = 1.0
"""The time that a step has left when the server ends."""


def new_app(served: ServedModels) -> FastAPI:
    """Make the application; the first model begins to load when it starts. Raises ConfigError for wrong MCP servers."""
    config, tools = served.config, mcp.ToolBox(served.config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served.start()
        sleeper = asyncio.create_task(served.sleep_idle())
        yield
        sleeper.cancel()
        tools.close()
        await asyncio.to_thread(served.close, CLOSE_S)

    app = FastAPI(
        title="forerun",
        version=forerun.__version__,
        lifespan=lifespan,
        docs_url=None,  # those pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.served, app.state.tools = served, tools
    key = () if config.api_key is None else (401,)
    statuses = (*openapi.POST, *key)
    app.include_router(status.open_router, responses=openapi.errors(openapi.GET))
    app.include_router(ollama_models.lists)
    for lists in (status.router, mcp.lists):
        app.include_router(lists, responses=openapi.errors((*openapi.GET, *key)))
    for module in DIALECTS:
        app.include_router(module.router, responses=openapi.errors(statuses))
    _add_errors(app)
    pages = page_routes() if config.page else []
    app.router.routes.extend(pages)
    if config.api_key is not None:
        opened = frozenset(route.path for route in pages) | OPEN_ROUTES
        app.add_middleware(ApiKeyCheck, api_key=config.api_key, opened=opened)
    app.add_middleware(HeadAsGet)
    app.add_middleware(  # a browser asks without the key first
        CORSMiddleware,
        allow_origins=config.allowed_origins,
        allow_origin_regex=DESKTOP,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["x-request-id", IGNORED],
    )
    app.add_middleware(OriginCheck, config=config)
    app.add_middleware(AccessLog, is_on=bool(config.log_requests), count=served.metrics.count)
    return app


def _add_errors(app: FastAPI) -> None:
    """Answer everything that goes wrong in one form."""

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(of_exception(error), request.url.path)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"there is no {request.url.path}; /openapi.json lists the routes"
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{request.method} is not allowed on {request.url.path} (allowed: {allowed})"
        answer = of_status(error.status_code, message)
        answer.headers = error.headers or {}
        return error_response(answer, request.url.path)

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # the client has gone

    for kind in (ApiError, RequestError, CapacityError, Closed, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
