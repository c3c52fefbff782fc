"""What routes tell FastAPI of their answers and errors, for /openapi.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
OBJECT = {"type": "object"}
_NAME = {"type": ["string", "null"]}
_STREAM = {"text/event-stream": {"schema": TEXT}}
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
GET, POST = (403, 404, 421, 500, 501, 503), tuple(_ERRORS.keys() - {401})
"""The errors of routes without a body, and with one, where no key is asked for."""


def object_of(**properties: object) -> Schema:
    """Describe an object with at least these properties."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def list_of(items: Schema) -> Schema:
    """Describe a list."""
    return {"type": "array", "items": items}


def answers(schema: Schema, *, streams: bool = False) -> Responses:
    """Describe a route's 200: JSON of this schema, which may come as server-sent events."""
    content = {"application/json": {"schema": schema}} | (_STREAM if streams else {})
    return {200: {"description": "The answer.", "content": content}}


ERROR = object_of(error=object_of(message=TEXT, type=TEXT, param=_NAME, code=_NAME))


def errors(statuses: Iterable[int], schema: Schema = ERROR) -> Responses:
    """Describe errors as JSON of this schema."""
    content = {"application/json": {"schema": schema}}
    described: Responses = {
        status: {"description": _ERRORS[status], "content": content} for status in statuses
    }
    return described | {"4XX": {"description": "Another mistake.", "content": content}}
