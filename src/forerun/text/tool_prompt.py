"""Tools for a model whose chat template has no place for them: described in the system message, calls as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.text.messages import Message, Tools, plain
from forerun.text.parsing.calls import CLOSE, OPEN

_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""What models of these families were trained to read where their template has no place for tools."""


def described(messages: Sequence[Message], tools: Tools | None) -> list[dict[str, object]]:
    """Return messages for a template without a place for tools: tools in the system message, calls as text."""
    rendered: list[dict[str, object]] = []
    for message in plain(messages):
        content, role = str(message["content"]), message["role"]
        calls: Any = message.get("tool_calls")
        if calls:
            texts = [f"{OPEN}\n{_spelled(call)}\n{CLOSE}" for call in calls]
            content = "\n".join(filter(None, [content, *texts]))
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        if (
            rendered
            and rendered[-1]["role"] == role == "user"
            and content.startswith("<tool_response>")
        ):
            rendered[-1]["content"] = f"{rendered[-1]['content']}\n{content}"
        else:
            rendered.append({"role": role, "content": content})
    if tools:
        text = _PROMPT.format(
            tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        )
        if rendered[0]["role"] == "system":
            rendered[0]["content"] = f"{rendered[0]['content']}\n\n{text}"
        else:
            rendered.insert(0, {"role": "system", "content": text})
    return rendered


def _spelled(call: Mapping[str, Any]) -> str:
    function = call["function"]
    known = {"name": function.get("name"), "arguments": function["arguments"]}
    return json.dumps(known, ensure_ascii=False)
