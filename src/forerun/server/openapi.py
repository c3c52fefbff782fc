"""What routes tell FastAPI of their answers and errors, for /openapi.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

TEXT = {"type": "string"}
OBJECT = {"type": "object"}
_JSON = {"type": ["object", "array"]}
"""What every route answers. Writers put documents together key by key, so a schema would be a second copy of them:
the types that clients read are the tests' (tests/server/test_wire.py)."""
_STREAM: Schema = {"text/event-stream": {"schema": {}}}
"""Some tools read the schema as that of the whole text, others as that of an event."""
_ERRORS = {
    400: "The request is invalid.",
    401: "The API key is missing or wrong.",
    403: "The web page's origin is not allowed.",
    404: "The model is not served here.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The content type is not JSON.",
    421: "The host name is not allowed.",
    429: "Too many requests are waiting: try again later.",
    500: "The model cannot be loaded, or the engine failed.",
    501: "The model, or the server as it was started, cannot do this.",
    502: "An MCP server does not answer.",
    503: "The model is loading, or the server is shutting down.",
}
GET, POST = (403, 404, 421, 500, 501, 503), tuple(_ERRORS.keys() - {401, 502})
"""The errors of routes without a body, and with one, where no key is asked for."""


def object_of(**properties: object) -> Schema:
    """Describe an object with at least these properties."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def list_of(items: Schema) -> Schema:
    """Describe a list."""
    return {"type": "array", "items": items}


def answers(*, streams: bool = False) -> Responses:
    """Describe a route's 200: JSON, which may come as server-sent events."""
    content = {"application/json": {"schema": _JSON}} | (_STREAM if streams else {})
    return {200: {"description": "The answer.", "content": content}}


def errors(statuses: Iterable[int]) -> Responses:
    """Describe errors as JSON."""
    content = {"application/json": {"schema": OBJECT}}
    described: Responses = {
        status: {"description": _ERRORS[status], "content": content} for status in statuses
    }
    return described | {"4XX": {"description": "Another mistake.", "content": content}}
