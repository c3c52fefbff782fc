"""How families write tool calls: the marks around them, and what stands between.

    Hermes, Qwen, SmolLM   <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>, or a list of such objects
    Qwen3-Coder, Qwen3.5   <tool_call><function=f><parameter=x>1</parameter></function></tool_call>
    Mistral                [TOOL_CALLS]f[ARGS]{"x": 1}, or [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]
    Gemma 4                <|tool_call>call:f{x:1,y:<|"|>text<|"|>}<tool_call|>
    Granite 3              <|tool_call|>[{"name": "f", "arguments": {"x": 1}}]
    Llama 3                <|python_tag|>{"name": "f", "parameters": {"x": 1}}
    OLMo 3                 <function_calls>f(x=1)</function_calls>

gpt-oss has messages instead: `harmony.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Call = tuple[str, str]
"""A name, and arguments as the text of a JSON object."""
_STRING = r'"(?:[^"\\]|\\.)*"'
_JSON_HEAD = re.compile(
    rf'\s*\{{\s*"name"\s*:\s*(?P<json>{_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)'
)
_NAMED_HEAD = re.compile(r"\s*(?P<name>[\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_FUNCTION = re.compile(r"<function=(.+?)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(.+?)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GEMMA = re.compile(r"\s*call:\s*([\w.-]+)\s*(\{.*\})\s*", re.DOTALL)
_GEMMA_TOKEN = re.compile(rf'<\|"\|>(.*?)<\|"\|>|({_STRING})|([A-Za-z_][\w.-]*)(?=\s*:)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One form. What stands between the marks is read as a whole, or as it comes from `head` on."""

    open: str
    close: str
    """Empty: calls go on to the next `open`, or to the end."""
    read: Callable[[str], list[Call] | None]
    """Returns the calls of what stands between the marks; None if it is no call in this form."""
    head: re.Pattern[str] | None = None
    """What stands before arguments that can be handed on while they are written: the name, in quotes as `json`."""

    def begun(self, text: str) -> tuple[str, int] | None:
        """Return a name and where its arguments begin; None if that is not known yet, or not in this form."""
        found = None if self.head is None else self.head.match(text)
        if found is None:
            return None
        quoted = found.groupdict().get("json")
        return found["name"] if quoted is None else json.loads(quoted, strict=False), found.end()


def _objects(body: str) -> list[Call] | None:
    """Read an object with a name and arguments, or a list of them."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(
        isinstance(c, Mapping) and isinstance(c.get("name"), str) for c in calls
    ):
        return None
    return [(c["name"], _spelled(c.get("arguments", c.get("parameters", {})))) for c in calls]


def _objects_or_tags(body: str) -> list[Call] | None:
    """Read objects, or functions and parameters as tags. A parameter that is no JSON is text."""
    if "<function=" not in body:
        return _objects(body)
    return [
        (name.strip(), _spelled(dict(_parameters(inner))))
        for name, inner in _FUNCTION.findall(body)
    ]


def _parameters(body: str) -> Iterator[tuple[str, Any]]:
    for name, value in _PARAMETER.findall(body):
        try:
            yield name.strip(), json.loads(value)
        except ValueError:
            yield name.strip(), value


def _gemma(body: str) -> list[Call] | None:
    """Read `call:name{...}`, whose keys have no quotes and whose texts have quotes of their own."""

    def quoted(found: re.Match[str]) -> str:
        own, plain, key = found.groups()
        return plain if plain is not None else json.dumps(key if own is None else own)

    if (found := _GEMMA.fullmatch(body)) is None:
        return None
    arguments = _GEMMA_TOKEN.sub(quoted, found[2])
    try:
        return [(found[1], _spelled(json.loads(arguments, strict=False)))]
    except ValueError:
        return None


def _python(body: str) -> list[Call] | None:
    """Read calls of Python whose arguments are named literals."""
    try:
        tree = ast.parse(body.strip())
        found = [
            (
                ast.unparse(call.func),
                {str(each.arg): ast.literal_eval(each.value) for each in call.keywords},
            )
            for call in (statement.value for statement in tree.body)  # type: ignore[attr-defined]
        ]
        return [(name, _spelled(arguments)) for name, arguments in found] or None
    except (SyntaxError, ValueError, AttributeError, TypeError):
        return None


def _spelled(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


OPEN, CLOSE = "<tool_call>", "</tool_call>"
HERMES = CallSyntax(OPEN, CLOSE, _objects_or_tags, _JSON_HEAD)
MISTRAL = CallSyntax("[TOOL_CALLS]", "", _objects, _NAMED_HEAD)
GEMMA = CallSyntax("<|tool_call>", "<tool_call|>", _gemma)
GRANITE = CallSyntax("<|tool_call|>", "", _objects)
LLAMA = CallSyntax("<|python_tag|>", "", _objects)
OLMO = CallSyntax("<function_calls>", "</function_calls>", _python)
