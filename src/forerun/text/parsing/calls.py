"""How families write tool calls: what stands between their marks (`forms.py`), in one of five syntaxes.

    objects   {"name": "f", "arguments": {"x": 1}}, a list of them, or several one after the other
    tags      <function=f><parameter=x>1</parameter></function> and the like: `tags.py`
    colon     call:f{x:1,y:<|"|>text<|"|>}
    named     f[ARGS]{"x": 1}, functions.f:0<|tool_call_argument_begin|>{"x": 1}, function<sep>f```json {"x": 1}```
    python    [f(x=1), g("text")]

They have nothing in common, so a body is read in the first that it fits. gpt-oss has messages instead: `harmony.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from forerun.text.parsing.json_text import repaired
from forerun.text.parsing.loose import keyword_calls, read_object, resolved, written
from forerun.text.parsing.tags import SchemaTypes, Tools, read_tags
from forerun.text.parsing.tags import is_whole as tags_are_whole
from forerun.text.parsing.written_calls import spelled


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of tools in OpenAI's form, or bare functions, by name."""
    functions = [tool.get("function", tool) for tool in tools]
    return {str(each.get("name")): each.get("parameters") or {} for each in functions}


class Call(NamedTuple):
    """A call that was read."""

    name: str
    arguments: str
    """The text of a JSON object."""
    id: str | None = None
    """What the model calls it, in families that have names for calls."""


_BEGUN = r'"(?:[^"\\]|\\.)*+'
_STRING = rf'{_BEGUN}"'
OBJECT_HEAD = re.compile(
    rf'\s*\{{\s*"name"\s*:\s*(?P<json>{_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)'
)
_NAME = r"[\w./@#~+-]++(?::(?!\d++(?:[\s<{]|$))[\w./@#~+-]++)*+"
NAMED_HEAD = re.compile(
    r"\s*+(?:function<｜tool▁sep｜>|(?P<own_id>\w++)<\|tool_call:name\|>)?"
    rf"(?P<id>(?:functions\.)?(?P<name>{_NAME})(?P<number>:\d++)?)"
    r"\s*+(?:\[CALL_ID\](?P<call_id>\w++))?(?:\[ARGS\]|<｜tool▁sep｜>|<\|tool_call(?:_argument_begin|:args)\|>)?"
    r"\s*+(?:```json)?\s*+(?=\{)"
)
"""What stands before arguments that can be handed on while they are written: the name, in quotes as `json`."""
_BETWEEN = re.compile(r"(?:[\s,;]|```\w*)*")
_NAMES, _ARGUMENTS = ("name", "tool_name", "function"), ("arguments", "parameters")
_COLON = re.compile(r"\s*call:\s*([\w.:/@#~+-]+?)\s*(\{.*\})\s*", re.DOTALL)
_FENCE = re.compile(r"^```\w*\s*|(?<!\s)\s*+```$")
_LIKE_A_CALL = re.compile(r"\s*(?:[\[{<]|call:|[\w.:/-]+\s*(?:<arg_key>|\[ARGS\]|[{(]))")
OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The marks around the calls of a family."""

    open: str
    close: str
    """Empty: calls go on to the next `open`, or to the end."""
    head: re.Pattern[str] | None = OBJECT_HEAD
    sign: str = ""
    """The mark that tells the family, if it is not `open`."""
    silent: tuple[str, ...] = ()
    """Marks that stand around text and calls and mean nothing."""

    def begun(self, text: str) -> tuple[str, str | None, int] | None:
        """Return a name, an id and where the arguments begin; None if that is not known yet, or not in this form."""
        found = None if self.head is None else self.head.match(text)
        if found is None:
            return None
        groups = found.groupdict()
        if "json" in groups:
            return json.loads(groups["json"], strict=False), None, found.end()
        return groups["name"], _id(groups), found.end()


HERMES = CallSyntax(OPEN, CLOSE)
"""Hermes, Qwen, SmolLM, Granite 4, GLM; what others are told to write where their template has no place for tools."""


def read_calls(body: str, tools: Tools) -> list[Call] | None:
    """Return the calls in a body; None if it is none in any syntax."""
    for read in (_objects, _tags, _colon, _named, _python, _drifted):
        if calls := read(body, tools):
            return [call._replace(name=resolved(call.name, tools)) for call in calls]
    return None


def is_whole(body: str, opened: str) -> bool:
    """Tell whether calls may end behind a body, where a mark stands that may be part of a value."""
    if (tags := tags_are_whole(opened + body)) is not None:
        return tags
    return bool(read_calls(body, {})) or _LIKE_A_CALL.match(body) is None


def _id(groups: Mapping[str, str | None]) -> str | None:
    return groups["own_id"] or groups["call_id"] or (groups["id"] if groups["number"] else None)


def _objects(body: str, tools: Tools) -> list[Call] | None:
    """Read objects and lists of them. JSON behind the first calls is not an answer: results that a model made up."""
    body = repaired(body)
    decoder, calls, at = json.JSONDecoder(strict=False), list[Call](), _end_of(_BETWEEN, body, 0)
    are_over = False
    try:
        while at < len(body):
            value, at = decoder.raw_decode(body, at)
            at = _end_of(_BETWEEN, body, at)
            values = value if isinstance(value, list) else [value]
            found = [call for one in values if (call := _object(one, tools)) is not None]
            are_over = are_over or len(found) < len(values)
            calls += [] if are_over else found
    except (ValueError, RecursionError):
        return None
    return calls


def _tags(body: str, tools: Tools) -> list[Call] | None:
    try:
        return [Call(name, arguments) for name, arguments in read_tags(body, tools)]
    except RecursionError:
        return None


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _object(value: object, tools: Tools) -> Call | None:
    """Read an object with a name and arguments, or with the name as its only key."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(inner := value.get("function"), Mapping):
        value = {"id": value.get("id"), **inner}
    if len(value) == 1 and (only := next(iter(value))) in tools:
        return Call(only, spelled(value[only]))
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    if name is None:
        return None
    given: object = next((value[key] for key in _ARGUMENTS if value.get(key) is not None), {})
    own = value.get("id")
    return Call(name, spelled(given), own if isinstance(own, str) else None)


def _colon(body: str, tools: Tools) -> list[Call] | None:
    """Read `call:name{...}`, whose keys have no quotes and whose texts have quotes of their own."""
    if (found := _COLON.fullmatch(body)) is None:
        return None
    schema = tools.get(found[1], {})
    try:
        return [Call(found[1], written(read_object(found[2]), schema, SchemaTypes(schema)))]
    except (ValueError, RecursionError):
        return None


def _named(body: str, tools: Tools) -> list[Call] | None:
    found = NAMED_HEAD.match(body)
    given = "" if found is None else body[found.end() :].strip().removesuffix("```").strip()
    arguments = repaired(given)
    try:
        json.loads(arguments, strict=False)
    except ValueError:
        return None
    assert found is not None
    return [Call(found["name"], arguments, _id(found.groupdict()))]


def _python(body: str, tools: Tools) -> list[Call] | None:
    """Read calls of Python whose arguments are literals, also of JSON; those without a name in the schema's order."""
    try:
        tree = ast.parse(body.strip())
        lines = [_Literals().visit(statement) for statement in tree.body]
        calls: list[Any] = [
            call for line in lines for call in getattr(line.value, "elts", [line.value])
        ]
        found = []
        for call in calls:
            name = ast.unparse(call.func)
            names = [*tools.get(name, {}).get("properties", {}), *map(str, range(len(call.args)))]
            pairs = [
                *zip(names, call.args, strict=False),
                *((one.arg, one.value) for one in call.keywords),
            ]
            found.append(
                Call(name, spelled({str(key): ast.literal_eval(value) for key, value in pairs}))
            )
        return found
    except (SyntaxError, ValueError, AttributeError, TypeError, RecursionError, MemoryError):
        return None


def _drifted(body: str, tools: Tools) -> list[Call] | None:
    """Read calls of offered tools in none of the forms: JSON and Python as models get them wrong."""
    try:
        text = _FENCE.sub("", body.strip())
        if not text.startswith("{"):
            return [Call(name, arguments) for name, arguments in keyword_calls(text, tools)]
        value = read_object(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(inner := value.get("function"), dict):
        value = inner
    name = resolved(str(next((value[key] for key in _NAMES if key in value), "")), tools)
    if name not in tools:
        return None
    given: object = next((value[key] for key in _ARGUMENTS if key in value), {})
    return (
        [Call(name, written(given, tools[name], SchemaTypes(tools[name])))]
        if isinstance(given, dict)
        else None
    )


class _Literals(ast.NodeTransformer):
    """Makes Python's of JSON's literals."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name that is a literal of JSON."""
        literals = {"true": True, "false": False, "null": None}
        return ast.Constant(literals[node.id]) if node.id in literals else node
