"""Tool calls in the text of an answer, as Qwen, SmolLM2, Hermes and their relatives write them.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

One call or a list of calls stands between the marks. The parser is fed the text as it comes; a call's arguments are
handed on while they are still being written.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forerun.text.messages import Message, Tools, plain

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)

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


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text outside of tool calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """The beginning of a tool call, with its name."""

    name: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}", compare=False)


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """More of the last call's arguments, which are the text of a JSON object."""

    text: str


Part = TextPart | CallPart | ArgumentsPart


class ToolCallParser:
    """Split an answer into text and tool calls. What is no call in this form stays text."""

    def __init__(self, *, has_tools: bool = True) -> None:
        """`has_tools`: False for an answer that can call nothing; all of it is text."""
        self.has_tools, self.num_calls = has_tools, 0
        self._held = ""
        self._read = self._read_text
        self._scanner = _ObjectScanner()

    def read(self, text: str, *, is_last: bool) -> list[Part]:
        """Split more text; `is_last` if none will follow."""
        if not self.has_tools:
            return [TextPart(text)] if text else []
        return self.push(text) + (self.flush() if is_last else [])

    def push(self, text: str) -> list[Part]:
        """Return the parts that this text makes final; a possible beginning of a mark is held back."""
        self._held += text
        parts: list[Part] = []
        while (new_parts := self._read()) is not None:
            parts += new_parts
        return [
            part for part in parts if not isinstance(part, TextPart | ArgumentsPart) or part.text
        ]

    def flush(self) -> list[Part]:
        """Return the rest: no text will follow."""
        held, self._held = self._held, ""
        if self._read == self._read_call:
            return [*self._calls(held, OPEN + held)]
        if self._read != self._read_text or (self.num_calls and not held.strip()):
            return []
        return [TextPart(held)] if held else []

    def _read_text(self) -> list[Part] | None:
        before, mark, after = self._held.partition(OPEN)
        if mark:
            self._held, self._read = after, self._read_call
            return [TextPart(before.rstrip())]
        kept = len(before) - _num_open(before, OPEN)
        kept = len(before[:kept].rstrip())
        if not kept:
            return None
        self._held = before[kept:]
        return [TextPart(before[:kept])]

    def _read_call(self) -> list[Part] | None:
        if head := _HEAD.match(self._held):
            self._held, self._read = self._held[head.end() :], self._read_arguments
            self._scanner = _ObjectScanner()
            self.num_calls += 1
            return [CallPart(json.loads(head[1], strict=False))]
        body, mark, after = self._held.partition(CLOSE)
        if not mark:
            return None
        self._held, self._read = after, self._read_text
        return [*self._calls(body, OPEN + body + CLOSE)]

    def _read_arguments(self) -> list[Part] | None:
        if not self._held:
            return None
        length = self._scanner.push(self._held)
        arguments, self._held = self._held[:length], self._held[length:]
        if self._scanner.is_complete:
            self._read = self._read_end
        return [ArgumentsPart(arguments)]

    def _read_end(self) -> list[Part] | None:
        _, mark, after = self._held.partition(CLOSE)
        if not mark:
            return None
        self._held, self._read = after, self._read_text
        return []

    def _calls(self, body: str, whole: str) -> Iterator[Part]:
        """Yield the calls in a body that is complete; the whole as text if it holds none."""
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        calls = value if isinstance(value, list) else [value]
        if not calls or not all(
            isinstance(c, Mapping) and isinstance(c.get("name"), str) for c in calls
        ):
            yield TextPart(whole)
            return
        for call in calls:
            self.num_calls += 1
            yield CallPart(call["name"])
            given = call.get("arguments", call.get("parameters", {}))
            yield ArgumentsPart(
                given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            )


class _ObjectScanner:
    """Finds the end of a JSON object in a text that comes in pieces."""

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> int:
        """Return how many of the characters belong to the object."""
        for i, sign in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = sign == "\\", sign != '"'
            elif sign == '"':
                self._in_string = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    self.is_complete = True
                    return i + 1
        return len(text)


def _num_open(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


def described(messages: Sequence[Message], tools: Tools | None) -> list[dict[str, object]]:
    """Return messages for a template without a place for tools: tools in the system message, calls as text."""
    turns: list[dict[str, object]] = []
    for message in plain(messages):
        content, role = str(message["content"]), message["role"]
        calls = message.get("tool_calls")
        if isinstance(calls, Sequence) and not isinstance(calls, str):
            texts = [f"{OPEN}\n{_spelled(call)}\n{CLOSE}" for call in calls]
            content = "\n".join(filter(None, [content, *texts]))
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        if turns and turns[-1]["role"] == role == "user" and content.startswith("<tool_response>"):
            turns[-1]["content"] = f"{turns[-1]['content']}\n{content}"
        else:
            turns.append({"role": role, "content": content})
    if tools:
        text = _PROMPT.format(
            tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        )
        if turns[0]["role"] == "system":
            turns[0]["content"] = f"{turns[0]['content']}\n\n{text}"
        else:
            turns.insert(0, {"role": "system", "content": text})
    return turns


def _spelled(call: object) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    known = {"name": function.get("name"), "arguments": function.get("arguments")}
    return json.dumps(known, ensure_ascii=False)
