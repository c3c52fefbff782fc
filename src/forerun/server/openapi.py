"""What /openapi.json says of a route besides its path: the body it reads, its answers, its errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from forerun.server.errors import is_anthropic
from forerun.server.http import OPEN_ROUTES

Schema = dict[str, Any]


def _object(**properties: object) -> Schema:
    """The schema of an object with at least these properties."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def _answer(**properties: object) -> Schema:
    """Content that comes whole, or as server-sent events."""
    return {**_json(**properties), "text/event-stream": {"schema": _TEXT}}


def _json(**properties: object) -> Schema:
    return {"application/json": {"schema": _object(**properties)}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT = {"type": "string"}
_WORD = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}
_OBJECT = {"type": "object"}
_MODEL = {
    "id": _TEXT,
    "object": {"const": "model"},
    "created": _COUNT,
    "max_model_len": {"type": ["integer", "null"]},
    "status": _object(value={"enum": ["loaded", "loading", "unloaded"]}),
}
_USAGE = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_CHOSEN = {"index": _COUNT, "finish_reason": _TEXT}
_COMPLETION = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "usage": _USAGE, "timings": _OBJECT}


def _native() -> Schema:
    """llama-server's answer: an object, or a list where several prompts came."""
    one = _object(content=_TEXT, stop={"type": "boolean"}, tokens_evaluated=_COUNT)
    schema = {"anyOf": [one, _list(one)]}
    return {"application/json": {"schema": schema}, "text/event-stream": {"schema": _TEXT}}


_ANSWERS: dict[str, Schema] = {
    "/v1/completions": _answer(
        object={"const": "text_completion"},
        choices=_list(_object(text=_TEXT, **_CHOSEN)),
        **_COMPLETION,
    ),
    "/v1/chat/completions": _answer(
        object={"const": "chat.completion"},
        choices=_list(_object(message=_OBJECT, **_CHOSEN)),
        **_COMPLETION,
    ),
    "/v1/responses": _answer(
        id=_TEXT,
        object={"const": "response"},
        status={"enum": ["completed", "incomplete"]},
        output=_list(_object(type=_TEXT, id=_TEXT)),
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "/v1/messages": _answer(
        id=_TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        content=_list(_object(type=_TEXT)),
        stop_reason=_TEXT,
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "/v1/messages/count_tokens": _json(input_tokens=_COUNT),
    "/v1/chat/completions/input_tokens": _json(input_tokens=_COUNT),
    "/v1/embeddings": _json(
        object={"const": "list"}, data=_list(_OBJECT), model=_TEXT, usage=_OBJECT
    ),
    "/completion": _native(),
    "/infill": _native(),
    "/embedding": {"application/json": {"schema": _list(_object(index=_COUNT))}},
    "/apply-template": _json(prompt=_TEXT),
    "/props": _json(default_generation_settings=_OBJECT, total_slots=_COUNT, model_path=_TEXT),
    "/slots": {"application/json": {"schema": _list(_object(id=_COUNT, n_ctx=_COUNT))}},
    "/tokenize": _json(count=_COUNT, max_model_len=_COUNT, tokens={"type": "array"}),
    "/detokenize": _json(prompt=_TEXT, content=_TEXT),
    "/health": _json(status={"const": "ok"}),
    "/v1/models": _json(object={"const": "list"}, data=_list(_object(**_MODEL))),
    "/v1/models/{name}": _json(**_MODEL),
    "/metrics": {"text/plain": {"schema": _TEXT}},
    "/version": _json(version=_TEXT),
}
"""The content of each route's 200."""

_OF_ONE = ("/props", "/slots")
"""Routes without a body that are of one of several models."""
_ERRORS = {
    400: "The request cannot be read, or asks for what cannot be had.",
    401: "The API key is missing or wrong.",
    403: "The page that asks may not use this server.",
    404: "The model is not served here.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not called JSON.",
    421: "The server is not called that.",
    429: "Too many requests wait: try again later.",
    500: "The model cannot be loaded, or the engine failed.",
    501: "The server was started without it, or the model cannot do it.",
    503: "The model loads, or the server is shutting down.",
}
_OPENAI = _json(error=_object(message=_TEXT, type=_TEXT, param=_WORD, code=_WORD))
_ANTHROPIC = _json(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT))


def described(route: str, body: type[BaseModel] | None, *, has_key: bool) -> Schema:
    """The parts of a route's description. `body` is None for one that reads none."""
    content = _ANTHROPIC if is_anthropic(route) else _OPENAI
    told = {
        str(status): {"description": _ERRORS[status], "content": content}
        for status in _statuses(route, body, has_key=has_key)
    }
    said = {"200": {"description": "The answer.", "content": _ANSWERS[route]}}
    found: Schema = {"responses": said | told}
    if body is not None:
        schema = {"schema": _inlined(body.model_json_schema())}
        found["requestBody"] = {"required": True, "content": {"application/json": schema}}
    if route.endswith("{name}"):
        name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
        found["parameters"] = [name]
    if route in _OF_ONE:
        name = {"name": "model", "in": "query", "required": False, "schema": _TEXT}
        found["parameters"] = [name]
    return found


def _statuses(route: str, body: type[BaseModel] | None, *, has_key: bool) -> list[int]:
    statuses = {403, 421}
    if body is not None:
        statuses |= {400, 408, 413, 415}
    if body is not None or route in (*_OF_ONE, "/v1/models/{name}"):
        statuses.add(404)
    if body is not None or route in _OF_ONE:
        statuses.add(500)
    if "text/event-stream" in _ANSWERS[route] or route.endswith(("embeddings", "embedding")):
        statuses.add(429)
    if route in ("/slots", "/infill", "/embedding", "/v1/embeddings"):
        statuses.add(501)
    if route != "/version":
        statuses.add(503)
    if has_key and route not in OPEN_ROUTES:
        statuses.add(401)
    return sorted(statuses)


def _inlined(schema: Schema) -> Schema:
    """A JSON schema without references to parts of itself: in the document they would lead nowhere."""
    parts = schema.pop("$defs", {})

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return put(parts[value["$ref"].rpartition("/")[2]])
        return {key: put(one) for key, one in value.items()}

    found: Schema = put(schema)
    return found
