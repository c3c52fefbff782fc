"""Chat messages in the shapes people write them, made into what chat templates read.

A template wants a text as `content` and objects as arguments of tool calls. OpenAI's messages may have a list of
parts or nothing as content, and arguments as JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from forerun.core.errors import RequestError, short_repr

Message = Mapping[str, object]
Tools = Sequence[Mapping[str, object]]

_TEXTS = ("text", "input_text", "output_text")


def plain(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the messages with content as text. Raises RequestError for what is no message, or not text."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f'a conversation is a list of {{"role": ..., "content": ...}}, got {short_repr(messages)}'
        )
    if not messages:
        raise RequestError("the conversation is empty: give at least one message")
    return [_plain(number, message) for number, message in enumerate(messages)]


def check_tools(tools: Tools) -> None:
    """Raise RequestError for tools that are not described as objects."""
    if isinstance(tools, str | Mapping) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError(
            "tools must be a list of objects like "
            '{"type": "function", "function": {"name": ..., "parameters": ...}}',
            option="tools",
        )


def _plain(number: int, message: Message) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise RequestError(f"message {number} is {short_repr(message)}: it needs role and content")
    missing = {"role", "content"} - message.keys()
    if "tool_calls" in message:
        missing.discard("content")
    if missing:
        raise RequestError(
            f"message {number} has {', '.join(message) or 'nothing'}: it needs role and content"
        )
    plain_message = {**message, "content": _text(number, message.get("content"))}
    if isinstance(calls := message.get("tool_calls"), Sequence):
        plain_message["tool_calls"] = [_read_arguments(call) for call in calls]
    return plain_message


def _text(number: int, content: object) -> str:
    """Return the text of a content; its parts stand on lines of their own."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise RequestError(f"the content of message {number} is {short_repr(content)}: give text")
    return "\n".join(_part(number, part) for part in content)


def _part(number: int, part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text")
        if part.get("type", "text") in _TEXTS and isinstance(text, str):
            return text
        raise RequestError(
            f"message {number} has a part of type {short_repr(part.get('type'))}: "
            'only {"type": "text", "text": ...} is supported'
        )
    raise RequestError(f"message {number} has a part {short_repr(part)}: give text")


def _read_arguments(call: object) -> object:
    """Return a tool call whose arguments are an object: OpenAI sends JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(str(function["arguments"]))
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}  # type: ignore[dict-item]
