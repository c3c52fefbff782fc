"""Conversations for templates that refuse them: what such a template takes instead, and says the same.

Each step is tried on top of those before it. A template that takes the messages as they are is never given others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from forerun.text.messages import THOUGHTS, Tools
from forerun.text.tool_prompt import described

Messages = list[dict[str, Any]]
Adaptation = Callable[[Messages, Tools | None], tuple[Messages, Tools | None]]

_NUM_LETTERS = 9
"""Letters and digits of a call's id in Mistral's templates."""
_NO_PARAMETERS = {"type": "object", "properties": {}}


def adapted(messages: Messages, tools: Tools | None) -> Iterator[tuple[Messages, Tools | None]]:
    """Yield the conversations that may be taken instead, those that say most first."""
    for adapt in _STEPS:
        before = (messages, tools)
        messages, tools = adapt(messages, tools)
        if (messages, tools) != before:
            yield messages, tools


def _thought_alone(messages: Messages, tools: Tools | None) -> tuple[Messages, Tools | None]:
    """Write what is said before a call, beside a thought, as the end of the thought."""
    changed = Messages()
    for message in messages:
        names = [name for name in THOUGHTS if message.get(name)]
        if names and message.get("tool_calls") and message["content"]:
            both = f"{message[names[0]]}\n\n{message['content']}"
            message = message | {"content": "", **dict.fromkeys(names, both)}
        changed.append(message)
    return changed, tools


def _with_ids(messages: Messages, tools: Tools | None) -> tuple[Messages, Tools | None]:
    """Give every call and result an id of nine letters and digits."""
    changed, waiting = Messages(), list[str]()
    for number, message in enumerate(messages):
        message = dict(message)
        if calls := message.get("tool_calls"):
            given = [str(call.get("id") or f"{number}.{i}") for i, call in enumerate(calls)]
            waiting = [_nine(one) for one in given]
            message["tool_calls"] = [
                call | {"id": call_id} for call, call_id in zip(calls, waiting, strict=True)
            ]
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            message["tool_call_id"] = (
                _nine(str(call_id)) if call_id else (waiting or [_nine(str(number))])[0]
            )
            waiting = [one for one in waiting if one != message["tool_call_id"]]
        changed.append(message)
    return changed, tools


def _nine(given: str) -> str:
    is_fine = len(given) == _NUM_LETTERS and given.isascii() and given.isalnum()
    return (
        given
        if is_fine
        else hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:_NUM_LETTERS]
    )


def _with_parameters(messages: Messages, tools: Tools | None) -> tuple[Messages, Tools | None]:
    """Give every tool a description and a schema with properties, each of which has a description."""
    filled = []
    for tool in tools or ():
        function: Any = tool.get("function")
        if isinstance(function, dict):
            parameters = _NO_PARAMETERS | (function.get("parameters") or {})
            if isinstance(named := parameters["properties"], dict):
                schemas = {key: one for key, one in named.items() if isinstance(one, dict)}
                filled_in = {key: {"description": "", **one} for key, one in schemas.items()}
                parameters = parameters | {"properties": named | filled_in}
            tool = {**tool, "function": {"description": "", **function, "parameters": parameters}}
        filled.append(tool)
    return messages, filled or tools


def _one_call_each(messages: Messages, tools: Tools | None) -> tuple[Messages, Tools | None]:
    """Write several calls of a turn as turns, each with its result behind it."""
    changed = Messages()
    for message in messages:
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            # a result goes behind its call, of those that are there
            asking = [
                i
                for i, one in enumerate(changed)
                if one.get("tool_calls") and message["role"] == "tool"
            ]
            ids = {changed[i]["tool_calls"][0].get("id"): i for i in asking}
            at = ids.get(message.get("tool_call_id"), len(changed) - 1)
            changed.insert(at + 1, message)
            continue
        for i, call in enumerate(calls):
            changed.append(message | {"tool_calls": [call]} | ({"content": ""} if i else {}))
    return changed, tools


def _merged_into_user(messages: Messages, first: int) -> Messages:
    """Let the user say what the system says from turn `first` on, and join neighbours of one role."""
    changed = Messages()
    for i, message in enumerate(messages):
        if i >= first and message["role"] == "system":
            message = message | {"role": "user"}
        last = changed[-1] if changed else {}
        is_plain = message["role"] != "tool" and not message.get("tool_calls")
        if is_plain and last.get("role") == message["role"] and not last.get("tool_calls"):
            text = "\n\n".join(filter(None, (last["content"], message["content"])))
            changed[-1] = last | message | {"content": text}
        else:
            changed.append(message)
    return changed


_STEPS: tuple[Adaptation, ...] = (
    *(_thought_alone, _with_ids, _with_parameters, _one_call_each),
    lambda messages, tools: (_merged_into_user(messages, 1), tools),
    lambda messages, tools: (_merged_into_user(messages, 0), tools),
    # calls as text:
    lambda messages, tools: (_merged_into_user(described(messages, tools), 0), None),
)
