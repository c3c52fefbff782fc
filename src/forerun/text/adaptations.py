"""Conversations for templates that refuse them: what such a template takes instead, and says the same.

Each step is tried on top of those before it. A template that takes the messages as they are is never given others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
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


def _system_first(turns: Turns, tools: Tools | None) -> tuple[Turns, Tools | None]:
    """Let the user say what the system says later on, and join neighbours of one role."""
    return _joined(
        [
            turn | {"role": "user"} if i and turn["role"] == "system" else turn
            for i, turn in enumerate(turns)
        ]
    ), tools


def _without_system(turns: Turns, tools: Tools | None) -> tuple[Turns, Tools | None]:
    """Let the user say what the system says."""
    return _joined(
        [turn | {"role": "user"} if turn["role"] == "system" else turn for turn in turns]
    ), tools


def _joined(turns: Sequence[dict[str, Any]]) -> Turns:
    found = Turns()
    for (role, is_plain), group in groupby(
        turns, lambda one: (one["role"], not one.get("tool_calls"))
    ):
        several = [*group]
        if role == "tool" or not is_plain or len(several) == 1:
            found += several
        else:
            content = "\n\n".join(one["content"] for one in several if one["content"])
            found.append(several[-1] | {"content": content})
    return found


def _without_tools(turns: Turns, tools: Tools | None) -> tuple[Turns, Tools | None]:
    """Write tools, calls and results as text."""
    return _joined(
        [
            turn | {"role": "user"} if turn["role"] == "system" else turn
            for turn in described(turns, tools)
        ]
    ), None


_STEPS: tuple[Adaptation, ...] = (
    *(_with_ids, _with_parameters, _one_call_each),
    *(_system_first, _without_system, _without_tools),
)
