"""Chat messages in the shapes people write them, made into the one form that chat templates read.

A text as `content`, objects as arguments of tool calls, no field that is null and no empty list of calls; the roles
system, user, assistant and tool. OpenAI's messages may have a list of parts or nothing as content, and arguments as
JSON text, which may also be none: a model wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forerun.core.errors import RequestError, short_repr

Message = Mapping[str, object]
Tools = Sequence[Mapping[str, object]]

_TEXTS = {"refusal": "refusal"} | dict.fromkeys(("text", "input_text", "output_text"), "text")
"""By type of a part: its field with the text."""
_ROLES = {"developer": "system", "function": "tool"}
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""What clients and templates call what the model thought before it wrote a turn."""
_PICTURES = ("image", "image_url", "input_image")
_UNSEEN = "[a {} was here, which this model cannot read]"
"""Stands in a tool's result for what is not text: refused, it would end the session, which sends it each time."""
_END = "\ufdd0"
"""A character that is in no text, by Unicode's rule."""


def plain(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the messages with content as text. Raises RequestError for what is not a message, or not text."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f'a conversation is a list of {{"role": ..., "content": ...}}, got {short_repr(messages)}'
        )
    if not messages:
        raise RequestError("the conversation is empty: give at least one message")
    return [_plain(number, message) for number, message in enumerate(messages)]


def render_unfinished(
    messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> str:
    """Write a conversation up to where its last message ends, which the answer goes on with.

    `render` writes a whole one. Raises RequestError if the last message is not a text of the assistant's.
    """
    *before, last = plain(messages)
    if last["role"] != "assistant" or not last["content"]:
        raise RequestError(
            "continue_final_message needs a last message of the assistant that has text",
            option="continue_final_message",
        )
    # a template may strip its texts, and puts marks behind them
    whole = render([*before, last | {"content": f"{last['content']}{_END}"}])
    text, mark, _ = whole.rpartition(_END)
    if not mark:
        raise RequestError(
            "the chat template does not write the last message as it is: leave out "
            "continue_final_message",
            option="continue_final_message",
        )
    return text


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
    if not message.keys() >= {"role"} or not message.keys() & {"content", "tool_calls", *THOUGHTS}:
        raise RequestError(
            f"message {number} has {', '.join(message) or 'nothing'}: it needs role and content"
        )
    turn = {name: value for name, value in message.items() if value is not None}
    turn["role"] = _ROLES.get(str(message["role"]), message["role"])
    turn["content"] = _text(number, message.get("content"), is_result=turn["role"] == "tool")
    thoughts = [turn[name] for name in THOUGHTS if isinstance(turn.get(name), str)]
    if thoughts:
        turn["reasoning_content"] = thoughts[0]
    calls = turn.pop("tool_calls", None)
    if calls:
        if isinstance(calls, str | Mapping) or not isinstance(calls, Sequence):
            raise RequestError(
                f"tool_calls of message {number} must be a list, got {short_repr(calls)}"
            )
        turn["tool_calls"] = [_call(call) for call in calls]
    return turn


def text_of(part: Mapping[str, Any]) -> str | None:
    """Return the text of a part, also of a document, or of what was found; None for what is not text."""
    kind = str(part.get("type", "text"))
    if kind == "document":
        source = part.get("source")
        content = None
        if isinstance(source, Mapping) and source.get("type") in ("text", "content"):
            content = source.get("data") or source.get("content")
        parts = [part.get("title"), part.get("context"), content]
    elif kind == "search_result":
        parts = [part.get("title"), part.get("source"), part.get("content")]
    elif kind == "tool_reference":
        parts = [part.get("tool_name")]
    else:
        text = part.get(_TEXTS.get(kind, ""))
        return text if isinstance(text, str) else None
    last = parts[-1]
    if isinstance(last, list):
        inner = [text_of(one) if isinstance(one, Mapping) else None for one in last]
        parts[-1] = None if None in inner else "\n".join(map(str, inner))
    is_whole = isinstance(parts[-1], str)
    return "\n".join(one for one in parts if isinstance(one, str)) if is_whole else None


def _text(number: int, content: object, *, is_result: bool = False) -> str:
    """Return the text of a content; its parts stand on lines of their own."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise RequestError(f"the content of message {number} is {short_repr(content)}: give text")
    return "\n".join(_part(number, part, is_result) for part in content)


def _part(number: int, part: object, is_result: bool) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        if (text := text_of(part)) is not None:
            return text
        if is_result and isinstance(kind := part.get("type"), str):
            return _UNSEEN.format("picture" if kind in _PICTURES else f"part of type {kind}")
        raise RequestError(
            f"message {number} has a part of type {short_repr(part.get('type'))}: "
            'only {"type": "text", "text": ...} is supported'
        )
    raise RequestError(f"message {number} has a part {short_repr(part)}: give text")


def _call(call: object) -> dict[str, object]:
    """Return a tool call whose arguments are an object."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(call, Mapping):
        raise RequestError(
            f'a tool call must be {{"function": {{"name": ...}}}}, got {short_repr(call)}'
        )
    inner = {**function, "arguments": _arguments(function.get("arguments"))}
    if function is call:
        return {"type": "function", "function": inner}
    return {**{name: value for name, value in call.items() if value is not None}, "function": inner}


def _arguments(given: object) -> object:
    """Read arguments: OpenAI sends JSON text. What is not an object is the only entry of one: some model wrote it."""
    value = given
    for _ in range(2):  # some clients write it twice
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value, strict=False) if value.strip() else {}
        except (ValueError, RecursionError):
            break
    if value is None or isinstance(value, Mapping):
        return value or {}
    return {"arguments": given}
