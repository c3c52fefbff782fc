"""What the document of the API says of messages; `formats/messages.py` and `server/messages.py` check them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

ANTHROPIC_ROLES = ("user", "assistant", "system")

_TEXT = {"type": "string"}
_PART = {"type": "object", "properties": {"type": _TEXT}, "required": ["type"]}
_PARTS = {"type": "array", "items": _PART}
_CALLS = {"type": "array", "items": {"type": "object"}}
_CHAT_MESSAGE = {
    "type": "object",
    "properties": {
        "role": _TEXT,
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
