"""Conversations for templates that refuse them: what such a template takes instead, and says the same.

Each step is tried on top of those before it. A template that takes the messages as they are is never given others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from forerun.text.messages import Tools
from forerun.text.tool_calls import described

Turns = list[dict[str, Any]]
Adaptation = Callable[[Turns, Tools | None], tuple[Turns, Tools | None]]

_NUM_LETTERS = 9
"""Letters and digits of a call's id in Mistral's templates."""
_NO_PARAMETERS = {"type": "object", "properties": {}}


def adapted(turns: Turns, tools: Tools | None) -> Iterator[tuple[Turns, Tools | None]]:
    """Yield the conversations that may be taken instead, those that say most first."""
    for adapt in _STEPS:
        before = (turns, tools)
        turns, tools = adapt(turns, tools)
        if (turns, tools) != before:
            yield turns, tools


def _with_ids(turns: Turns, tools: Tools | None) -> tuple[Turns, Tools | None]:
    """Give every call and result an id of nine letters and digits."""
    found, waiting = Turns(), list[str]()
    for number, turn in enumerate(turns):
        turn = dict(turn)
        if calls := turn.get("tool_calls"):
            given = [str(call.get("id") or f"{number}.{i}") for i, call in enumerate(calls)]
            waiting = [_nine(one) for one in given]
            turn["tool_calls"] = [
                call | {"id": own} for call, own in zip(calls, waiting, strict=True)
            ]
        if turn["role"] == "tool":
            own = turn.get("tool_call_id")
            turn["tool_call_id"] = _nine(str(own)) if own else (waiting or [_nine(str(number))])[0]
            waiting = [one for one in waiting if one != turn["tool_call_id"]]
        found.append(turn)
    return found, tools


def _nine(given: str) -> str:
    is_fine = len(given) == _NUM_LETTERS and given.isascii() and given.isalnum()
    return (
        given
        if is_fine
        else hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:_NUM_LETTERS]
    )


def _with_parameters(turns: Turns, tools: Tools | None) -> tuple[Turns, Tools | None]:
    """Give every tool a description and a schema with properties."""
    filled = []
    for tool in tools or ():
        function: Any = tool.get("function")
        if isinstance(function, dict):
            parameters = _NO_PARAMETERS | (function.get("parameters") or {})
            tool = {**tool, "function": {"description": "", **function, "parameters": parameters}}
        filled.append(tool)
    return turns, filled or tools


def _one_call_each(turns: Turns, tools: Tools | None) -> tuple[Turns, Tools | None]:
    """Write several calls of a turn as turns, each with its result behind it."""
    found = Turns()
    for turn in turns:
        calls = turn.get("tool_calls") or ()
        if len(calls) < 2:
            # a result goes behind its call, of those that are there
            own = [
                i for i, one in enumerate(found) if one.get("tool_calls") and turn["role"] == "tool"
            ]
            ids = {found[i]["tool_calls"][0].get("id"): i for i in own}
            at = ids.get(turn.get("tool_call_id"), len(found) - 1)
            found.insert(at + 1, turn)
            continue
        for i, call in enumerate(calls):
            found.append(turn | {"tool_calls": [call]} | ({"content": ""} if i else {}))
    return found, tools


def _said_by_user(turns: Turns, first: int) -> Turns:
    """Let the user say what the system says from turn `first` on, and join neighbours of one role."""
    found = Turns()
    for i, turn in enumerate(turns):
        if i >= first and turn["role"] == "system":
            turn = turn | {"role": "user"}
        last = found[-1] if found else {}
        is_plain = turn["role"] != "tool" and not turn.get("tool_calls")
        if is_plain and last.get("role") == turn["role"] and not last.get("tool_calls"):
            said = "\n\n".join(filter(None, (last["content"], turn["content"])))
            found[-1] = last | turn | {"content": said}
        else:
            found.append(turn)
    return found


_STEPS: tuple[Adaptation, ...] = (
    *(_with_ids, _with_parameters, _one_call_each),
    lambda turns, tools: (_said_by_user(turns, 1), tools),
    lambda turns, tools: (_said_by_user(turns, 0), tools),
    lambda turns, tools: (_said_by_user(described(turns, tools), 0), None),  # calls as text
)
