"""What the document of the API says of messages; `text/messages.py` and `server/messages.py` check them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import WithJsonSchema

from forerun.core.errors import short_repr
from forerun.server.errors import ApiError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
ANTHROPIC_ROLES = ("user", "assistant", "system")

_TEXT = {"type": "string"}
_PART = {"type": "object", "properties": {"type": _TEXT}, "required": ["type"]}
_PARTS = {"type": "array", "items": _PART}
_CALLS = {"type": "array", "items": {"type": "object"}}
_CHAT_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": [*ROLES]},
        "content": {"anyOf": [_TEXT, {"type": "null"}, _PARTS]},
        "tool_calls": _CALLS,
    },
    "required": ["role"],
    "anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}],
}
_ANTHROPIC_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": [*ANTHROPIC_ROLES]},
        "content": {"anyOf": [_TEXT, _PARTS]},
    },
    "required": ["role", "content"],
}


def _listed(message: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"type": "array", "items": message, "minItems": 1})


ChatMessages = Annotated[list[dict[str, Any]], _listed(_CHAT_MESSAGE)]
AnthropicMessages = Annotated[list[dict[str, Any]], _listed(_ANTHROPIC_MESSAGE)]


def check_roles(messages: Sequence[Mapping[str, Any]], field: str = "messages") -> None:
    """Raise ApiError for a role that there is not. One that is missing is told with what else is."""
    for number, message in enumerate(messages):
        role = message.get("role", "user")
        if role not in ROLES:
            allowed = f"{', '.join(ROLES[:-1])} or {ROLES[-1]}"
            what = f"{field}[{number}].role must be {allowed}, got {short_repr(role)}"
            raise ApiError(400, what, param=field)
