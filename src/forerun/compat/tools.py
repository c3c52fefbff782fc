"""The tools of a request: how the model is told of them, and the form that calls must have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from forerun.compat.ignored_fields import note
from forerun.core.errors import RequestError, short_repr
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.calls import CallGrammar, in_json
from forerun.decoding.schemas import unreadable
from forerun.text.messages import Message, Tools
from forerun.text.parsing.calls import CLOSE, schemas_of
from forerun.text.parsing.families import HARMONY_CALLS, HERMES_CALLS
from forerun.text.parsing.forms import AnswerForm
from forerun.text.parsing.harmony import CALL, CHANNEL, FINAL
from forerun.text.parsing.tags import Tools as Schemas
from forerun.text.tool_prompt import described

_NAME = re.compile(r"[\w.:/@#~+-]{1,128}")
CHOICES = 'none, auto, required or {"type": "function", "function": {"name": ...}}'

ALLOWED = "allowed_tools"
"""The type of a choice that leaves only some of the tools."""
_NOT_STRICT = "with tool_choice auto a model writes its calls freely; required or named ones follow the schema"

_HOSTED = "only functions, which the client runs, can be called here"
_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}

Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools that a request offers, those that must be called, and whether several calls may be made at once."""

    tools: tuple[Tool, ...] = ()
    required: tuple[Tool, ...] = ()
    is_parallel: bool = True

    @classmethod
    def of(cls, tools: Sequence[object] | None, choice: object, parallel: bool | None) -> Toolbox:
        """Read them as OpenAI's chat completions write them. Raises RequestError."""
        read = (_checked(f"tools[{i}]", tool) for i, tool in enumerate(tools or ()))
        checked = [tool for tool in read if tool is not None]
        if isinstance(choice, Mapping) and choice.get("type") == ALLOWED:
            checked, choice = _allowed(checked, choice.get(ALLOWED, choice))
        choice = _plain_choice(choice)
        is_auto, is_parallel = choice in (None, "auto"), parallel is not False
        if is_auto and any(map(_is_strict, checked)):
            note("tools.strict", _NOT_STRICT)
        offered = tuple(map(_plain, checked))
        by_name = {_name(tool): tool for tool in offered}
        if len(by_name) < len(offered):
            raise RequestError("tools must have different names", option="tools")
        if choice == "none":
            return cls()
        if is_auto:
            return cls(offered, (), is_parallel)
        if not offered:
            raise RequestError("tool_choice needs tools: give some", option="tools")
        if choice == "required":
            return cls(offered, offered, is_parallel)
        name = _chosen(choice)
        if not isinstance(name, str) or name not in by_name:
            raise _must_be("tool_choice", f"one of the tools ({', '.join(by_name)})", name)
        return cls(offered, (by_name[name],), False)

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """By name of a tool: the schema of its arguments."""
        return schemas_of(self.tools)

    def prepare(
        self, messages: Sequence[Message], *, reads_tools: bool
    ) -> tuple[Sequence[Message], Tools | None]:
        """Return the messages, and the tools for a template that reads them; for another one they are text."""
        speaks_tools = any(one.get("tool_calls") or one.get("role") == "tool" for one in messages)
        if not self.tools and not speaks_tools:
            return messages, None
        if reads_tools:
            return messages, self.tools
        return described(messages, self.tools), None

    def form(
        self, answer: StructuredOutputsParams | None, new_grammar: Callable[[Schemas], CallGrammar]
    ) -> StructuredOutputsParams:
        """Choose the form of the answer: calls if they are required; calls or its own form. Raises RequestError."""
        grammar = new_grammar(_compilable(schemas_of(self.required or self.tools)))
        after = None
        if grammar.written is HARMONY_CALLS:  # behind any message that is a thought
            after = CALL if self.required else CHANNEL
        start, lines = "calls", grammar.rules(is_parallel=self.is_parallel, behind=after or "")
        if not self.required:
            if answer is None or not (answer.json or answer.json_object):
                message = "tools go with a response_format of JSON only"
                raise RequestError(message, option="response_format")
            said = grammar.text(FINAL.removeprefix(after) if after else "")
            start = f"calls | {said} {in_json(json.loads(answer.source or '{}'))}"
        return StructuredOutputsParams(grammar="\n".join([f"start: {start}", *lines]), after=after)


def call_grammar(
    form: AnswerForm, control: Mapping[str, int], *, reads_tools: bool
) -> Callable[[Schemas], CallGrammar]:
    """Return what writes the grammar of calls, in the family's form if its template reads tools.

    `control` are the ids of control tokens, by their texts.
    """
    written = form.written if form.is_harmony or reads_tools else HERMES_CALLS
    return partial(CallGrammar, written, control=control, marks=(form.calls.close, CLOSE))


def _compilable(schemas: Schemas) -> Schemas:
    """Leave the arguments of a tool free whose schema cannot be compiled, where others can be called."""
    open_ones = {}
    for name, schema in schemas.items() if len(schemas) > 1 else ():
        if why := unreadable(schema):
            note(f"tools.{name}.parameters", f"its arguments are free: {why} cannot be enforced")
            open_ones[name] = {"type": "object"}
    return {**schemas, **open_ones}


def is_hosted(tool: Mapping[str, Any]) -> bool:
    """Tell a tool that others run: whatever is not a function."""
    kind = tool.get("type", "function")
    return isinstance(kind, str) and kind not in ("function", "custom")


def of_text(tool: Mapping[str, Any]) -> Tool:
    """Make a function of one text of a `custom` tool."""
    form = tool.get("format")
    grammar = form.get("definition") if isinstance(form, Mapping) else None
    words = [str(part) for part in (tool.get("description"), grammar) if part]
    function = {"name": tool.get("name"), "description": "\n\n".join(words), "parameters": _TEXT}
    return {"type": "function", "function": function}


def _checked(where: str, tool: object) -> Tool | None:
    """Return a tool as a function; None for one that others run. Raises RequestError."""
    if not isinstance(tool, Mapping):
        raise _must_be(where, "a function", tool, "tools")
    if is_hosted(tool):
        note(f"tools of type {tool['type']}", _HOSTED)
        return None
    if tool.get("type") == "custom":
        own = tool.get("custom", tool)
        tool = of_text(own if isinstance(own, Mapping) else {})
    if "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function must have a name", option="tools")
    if not _NAME.fullmatch(name := function["name"]):
        raise _must_be(
            f"{where}.function.name",
            "1 to 128 letters, digits and _ . : / @ # ~ + -",
            name,
            "tools",
        )
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping | None):
        raise _must_be(f"{where}.function.parameters", "a JSON schema", parameters, "tools")
    for strict in (tool.get("strict"), function.get("strict")):
        if not isinstance(strict, bool | None):
            raise _must_be(f"{where}.strict", "true or false", strict, "tools")
    return tool


def _plain(tool: Tool) -> Tool:
    """Return a tool as templates read it: without `strict`, and fields that are null."""
    function = {name: value for name, value in tool["function"].items() if value is not None}
    return {
        **{name: value for name, value in tool.items() if name != "strict"},
        "function": function,
    }


def _is_strict(tool: Tool) -> bool:
    """Tell whether arguments must follow the schema: chat completions say so of the function, others of the tool."""
    return bool(tool.get("strict") or tool["function"].get("strict"))


def _allowed(tools: Sequence[Tool], given: object) -> tuple[list[Tool], object]:
    """Keep the tools that a choice allows, and return its mode. Raises RequestError."""
    given = given if isinstance(given, Mapping) else {}
    mode, named = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required") or not isinstance(named, list) or not named:
        what = '{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": ...}}]}'
        raise _must_be(f"tool_choice.{ALLOWED}", what, given, "tool_choice")
    known, names = {_name(tool): None for tool in tools}, set[str]()
    for one in named:
        function = one.get("function", one) if isinstance(one, Mapping) else one
        name = function.get("name") if isinstance(function, Mapping) else function
        if not isinstance(name, str) or name not in known:
            what = f"tools of the request ({', '.join(known)})"
            raise _must_be(f"tool_choice.{ALLOWED}.tools", what, name, "tool_choice")
        names.add(name)
    return [tool for tool in tools if _name(tool) in names], mode


def _plain_choice(choice: object) -> object:
    """Read Mistral's and Anthropic's way to say that a tool must be called."""
    if isinstance(choice, Mapping) and choice.keys() <= {"type", "disable_parallel_tool_use"}:
        choice = choice.get("type")
    return "required" if choice == "any" else choice


def _chosen(choice: object) -> object:
    """Find the name in a choice. Raises RequestError for one that is none."""
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    if not isinstance(function, Mapping) or "name" not in function:
        raise _must_be("tool_choice", CHOICES, choice)
    return function["name"]


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])


def _must_be(name: str, allowed: str, given: object, param: str = "") -> RequestError:
    message = f"{name} must be {allowed}, got {short_repr(given)}"
    return RequestError(message, option=param or name)
