"""Routes, and errors in the JSON of the API that was asked. `generation.py` has those that answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

import forerun
from forerun.core.errors import CapacityError, RequestError
from forerun.llm import LLM
from forerun.server.access_log import AccessLog
from forerun.server.browsers import OriginCheck
from forerun.server.catalog import health, metrics, model, models, version
from forerun.server.conversations import check_roles
from forerun.server.embeddings import embeddings, native_embeddings
from forerun.server.errors import ApiError, of_exception, of_status
from forerun.server.fleet import Fleet
from forerun.server.generation import (
    chat_completions,
    completions,
    count_tokens,
    messages,
    responses,
)
from forerun.server.http import OPEN_ROUTES, Guarded, answer, body_nbytes, refusal
from forerun.server.infill import infill
from forerun.server.native import completion
from forerun.server.native_schema import EmbeddingRequest, InfillRequest, NativeRequest
from forerun.server.openapi import described
from forerun.server.page import page_routes
from forerun.server.props import apply_template, input_tokens, props, slots
from forerun.server.schema import (
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    DetokenizeRequest,
    MessagesRequest,
    ResponsesRequest,
    TokenizeRequest,
)
from forerun.server.service import Service
from forerun.server.texts import check_counted
from forerun.server.worker import Closed

CLOSE_S = 1.0
"""The time that a step has left when the server ends."""

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
Handler = Callable[[Service, Request], Coroutine[Any, Any, Response]]
Overview = Callable[[Fleet, Request], Coroutine[Any, Any, Response]]


def new_app(fleet: Fleet) -> FastAPI:
    """The application; the first model begins to load when it starts."""
    config = fleet.config

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        fleet.start()
        yield
        await asyncio.to_thread(fleet.close, CLOSE_S)

    app = FastAPI(
        title="forerun",
        version=forerun.__version__,
        lifespan=lifespan,
        docs_url=None,  # those pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    for path, body, handler in POSTED:
        _add(app, fleet, "POST", path, handler, body)
    for path, get in GOTTEN:
        _add(app, fleet, "GET", path, get)
    for path, of_all in OVERVIEWS:
        _add_overview(app, fleet, path, of_all)
    for path, other in SHORT.items():
        _add_short(app, path, other)
    _add_errors(app)
    pages = page_routes() if config.page else []
    app.router.routes.extend(pages)
    if config.api_key is not None:
        opened = frozenset(route.path for route in pages) | OPEN_ROUTES
        app.add_middleware(Guarded, api_key=config.api_key, opened=opened)
    app.add_middleware(OriginCheck, config=config)
    if config.allowed_origins:  # outermost: a browser asks without the key first
        origins = [*config.allowed_origins]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(AccessLog, is_on=bool(config.log_requests))
    return app


async def tokenize(service: Service, request: Request) -> Response:
    """Token ids of a text or a conversation."""
    body, _ = await service.read(request, TokenizeRequest)
    llm = service.llm()
    given = [one for one in (body.prompt, body.content, body.messages) if one is not None]
    if len(given) != 1:
        raise ApiError(400, "give one of prompt, messages and content", param="prompt")
    return await service.encode(lambda: answer(_taken_apart(body, llm)), body_nbytes(request))


def _taken_apart(body: TokenizeRequest, llm: LLM) -> dict[str, Any]:
    tokens = _tokenized(body, llm)
    document: dict[str, Any] = {"count": len(tokens), "max_model_len": llm.max_len}
    document["tokens"] = tokens
    # each of the vocabulary once: to make and to free one for each of 250,000 tokens would hold up other threads
    texts = {token: llm.tokenizer.text_of(token) for token in {*tokens}}
    if body.with_pieces:
        pieces = {token: {"id": token, "piece": text} for token, text in texts.items()}
        document["tokens"] = [pieces[token] for token in tokens]
    if body.return_token_strs:
        document["token_strs"] = [texts[token] for token in tokens]
    return document


def _tokenized(body: TokenizeRequest, llm: LLM) -> list[int]:
    tokenizer, wants_bos = llm.tokenizer, False
    if body.messages is not None:
        check_roles(body.messages)
        text = tokenizer.apply_chat_template(
            body.messages, add_generation_prompt=body.add_generation_prompt
        )
        check_counted(text, "messages")
    else:
        text = (body.prompt if body.content is None else body.content) or ""
        check_counted(text, "prompt" if body.content is None else "content")
        wants_bos = body.add_special_tokens if body.content is None else body.add_special
    return tokenizer.encode(text, bos=None if wants_bos else False)


async def detokenize(service: Service, request: Request) -> Response:
    """The text of token ids, as vLLM (`prompt`) and llama-server (`content`) call it."""
    body, _ = await service.read(request, DetokenizeRequest)
    tokenizer = service.llm().tokenizer

    def put_together() -> Response:
        for token in body.tokens:
            if tokenizer.token_bytes(token) is None:
                raise ApiError(400, f"token id {token} is not in the vocabulary", param="tokens")
        text = tokenizer.decode(body.tokens, skip_special=False)
        return answer({"prompt": text, "content": text})

    return await service.encode(put_together, body_nbytes(request))


POSTED: tuple[tuple[str, type[BaseModel], Handler], ...] = (
    ("/v1/completions", CompletionRequest, completions),
    ("/v1/chat/completions", ChatRequest, chat_completions),
    ("/v1/chat/completions/input_tokens", ChatRequest, input_tokens),
    ("/v1/responses", ResponsesRequest, responses),
    ("/v1/messages", MessagesRequest, messages),
    ("/v1/messages/count_tokens", CountTokensRequest, count_tokens),
    ("/v1/embeddings", EmbeddingRequest, embeddings),
    ("/completion", NativeRequest, completion),
    ("/infill", InfillRequest, infill),
    ("/embedding", EmbeddingRequest, native_embeddings),
    ("/apply-template", ChatRequest, apply_template),
    ("/tokenize", TokenizeRequest, tokenize),
    ("/detokenize", DetokenizeRequest, detokenize),
)
GOTTEN: tuple[tuple[str, Handler], ...] = (
    ("/props", props),
    ("/slots", slots),
)
OVERVIEWS: tuple[tuple[str, Overview], ...] = (
    ("/health", health),
    ("/v1/models", models),
    ("/v1/models/{name:path}", model),
    ("/metrics", metrics),
    ("/version", version),
)
SHORT = {
    "/chat/completions": "/v1/chat/completions",
    "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
    "/responses": "/v1/responses",
    "/models": "/v1/models",
    "/v1/health": "/health",
    "/completions": "/completion",
    "/embeddings": "/embedding",
}
"""llama-server's other paths of a route; its `/completions` is its own form, not OpenAI's."""


def _add_short(app: FastAPI, path: str, other: str) -> None:
    """Another path of a route, which the document of the API does not repeat."""
    (route,) = (one for one in app.routes if isinstance(one, APIRoute) and one.path == other)
    methods = sorted(route.methods or ())
    app.add_api_route(path, route.endpoint, methods=methods, include_in_schema=False)


def _add(
    app: FastAPI,
    fleet: Fleet,
    method: str,
    path: str,
    handler: Handler,
    body: type[BaseModel] | None = None,
) -> None:
    """A route of the model that a request names."""

    async def endpoint(request: Request) -> Response:
        return await fleet.answered(request, handler)

    _add_endpoint(app, fleet, method, path, endpoint, handler, body)


def _add_overview(app: FastAPI, fleet: Fleet, path: str, handler: Overview) -> None:
    """A route about all models."""

    async def endpoint(request: Request) -> Response:
        return await handler(fleet, request)

    _add_endpoint(app, fleet, "GET", path, endpoint, handler, None)


def _add_endpoint(
    app: FastAPI,
    fleet: Fleet,
    method: str,
    path: str,
    endpoint: Endpoint,
    handler: Handler | Overview,
    body: type[BaseModel] | None,
) -> None:
    """A route; its body is read by `read`, so the document of the API is told of it here."""
    listed = path.replace(":path", "")
    has_key = fleet.config.api_key is not None
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        name=handler.__name__,
        description=handler.__doc__,
        openapi_extra=described(listed, body, has_key=has_key),
        response_class=Response,
    )


def _add_errors(app: FastAPI) -> None:
    """Everything that goes wrong is answered in one form."""

    async def told(request: Request, error: Exception) -> Response:
        return refusal(of_exception(error), request.url.path)

    async def of_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"there is no {request.url.path}; /openapi.json lists the routes"
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{request.method} is not possible on {request.url.path} (allowed: {allowed})"
        found = of_status(error.status_code, message)
        found.headers = error.headers or {}
        return refusal(found, request.url.path)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # the client has gone

    for kind in (ApiError, RequestError, CapacityError, Closed, Exception):
        app.add_exception_handler(kind, told)
    app.add_exception_handler(HTTPException, of_route)
    app.add_exception_handler(ClientDisconnect, gone)
