"""How families write tool calls: what stands between their marks (`forms.py`), in one of five syntaxes.

    objects   {"name": "f", "arguments": {"x": 1}}, a list of them, or several one after the other
    tags      <function=f><parameter=x>1</parameter></function>, <invoke name="f">..., f<arg_key>x</arg_key>...
    colon     call:f{x:1,y:<|"|>text<|"|>}
    named     f[ARGS]{"x": 1}, functions.f:0<|tool_call_argument_begin|>{"x": 1}, function<sep>f```json {"x": 1}```
    python    [f(x=1), g("text")]

They have nothing in common, so a body is read in the first that it fits. gpt-oss has messages instead: `harmony.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

Tools = Mapping[str, Mapping[str, Any]]
"""By name of a function that is offered: the JSON schema of its arguments."""


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


_STRING = r'"(?:[^"\\]|\\.)*"'
OBJECT_HEAD = re.compile(
    rf'\s*\{{\s*"name"\s*:\s*(?P<json>{_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)'
)
NAMED_HEAD = re.compile(
    r"\s*(?:function<｜tool▁sep｜>)?(?P<id>(?:functions\.)?(?P<name>[\w.-]+)(?P<number>:\d+)?)"
    r"\s*(?:\[CALL_ID\](?P<call_id>\w+))?(?:\[ARGS\]|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>)?"
    r"\s*(?:```json)?\s*(?=\{)"
)
"""What stands before arguments that can be handed on while they are written: the name, in quotes as `json`."""
_BETWEEN = re.compile(r"(?:[\s,;]|```\w*)*")
_NAMES, _ARGUMENTS = ("name", "tool_name", "function"), ("arguments", "parameters")
_FUNCTION = re.compile(
    r'<(?:function=|(?:function|invoke) name=)"?([^">]+)"?>(.*?)(?:</(?:function|invoke)>(?=\s*(?:<|$))|$)',
    re.DOTALL,
)
_PARAMETER = re.compile(
    r'<param(?:eter)?(?:=| name=)"?([^">]+)"?[^>]*>\n?(.*?)\n?(?:</param(?:eter)?>(?=\s*(?:<param(?:eter)?[ =]|$))|$)',
    re.DOTALL,
)
_PAIRS = re.compile(r"\s*([\w.-]+)\s*((?:<arg_key>.*</arg_value>)?)\s*", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_COLON = re.compile(r"\s*call:\s*([\w.-]+)\s*(\{.*\})\s*", re.DOTALL)
_COLON_TOKEN = re.compile(rf'<\|"\|>(.*?)<\|"\|>|({_STRING})|([A-Za-z_][\w.-]*)(?=\s*:)', re.DOTALL)
_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
_WORDS = {"True": "true", "False": "false", "None": "null"}


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


OPEN, CLOSE = "<tool_call>", "</tool_call>"
HERMES = CallSyntax(OPEN, CLOSE)
"""Hermes, Qwen, SmolLM, Granite 4, GLM; what others are told to write where their template has no place for tools."""


def read_calls(body: str, tools: Tools) -> list[Call] | None:
    """Return the calls in a body; None if it is none in any syntax."""
    for read in (_objects, _tags, _colon, _named, _python):
        if calls := read(body, tools):
            return calls
    return None


def _id(groups: Mapping[str, str | None]) -> str | None:
    return groups["call_id"] or (groups["id"] if groups["number"] else None)


_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|)')
"""Of JSON; a backslash before anything else, as of a path, is one that the model did not escape."""


def _objects(body: str, tools: Tools) -> list[Call] | None:
    """Read objects and lists of them. JSON behind the first calls is no answer: results that a model made up."""
    body = _ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", body)
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


def _tags(body: str, tools: Tools) -> list[Call] | None:
    """Read names and values as tags; a value has the type that the tool's schema says."""
    body = body.replace("｜DSML｜", "")
    found = [(name, _PARAMETER.findall(inner), inner) for name, inner in _FUNCTION.findall(body)]
    if not found and (alone := _PAIRS.fullmatch(body)) is not None:
        if not alone[2] and alone[1] not in tools:
            return None
        found = [(alone[1], _PAIR.findall(alone[2]), "")]
    calls = []
    for name, pairs, inner in found:
        if not pairs and inner.strip().startswith("{"):  # <function=f>{"x": 1}</function>
            calls.append(Call(name.strip(), inner.strip()))
            continue
        schema = tools.get(name.strip(), {})
        values = (
            f"{json.dumps(key.strip())}: {_typed(value, key.strip(), schema)}"
            for key, value in pairs
        )
        calls.append(Call(name.strip(), f"{{{', '.join(values)}}}"))
    return calls


def _typed(text: str, key: str, schema: Mapping[str, Any]) -> str:
    """Write a value as JSON: a text where the schema has one, else as it stands if it is JSON."""
    properties = schema.get("properties")
    own = properties.get(key) if isinstance(properties, Mapping) else None
    types = set() if own is None else {*_types(own, schema)}
    word = text.strip()
    word = word if "string" in types else _WORDS.get(word, word)
    try:
        value = json.loads(word, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    kind = _TYPES.get(type(value), "null")
    is_text = "string" in types and (kind not in types or kind in ("integer", "number", "boolean"))
    return json.dumps(text, ensure_ascii=False) if is_text else word


def _no_json(name: str) -> NoReturn:
    raise ValueError(name)


def _types(schema: object, root: Mapping[str, Any], depth: int = 8) -> Iterator[str]:
    """Yield the types that a schema allows, as far as it says them."""
    if not isinstance(schema, Mapping) or not depth:
        return
    stated = schema.get("type", ())
    yield from [stated] if isinstance(stated, str) else stated
    for value in [schema["const"]] if "const" in schema else schema.get("enum", ()):
        yield _TYPES.get(type(value), "null")
    reference = schema.get("$ref")
    inner = [part for name in ("anyOf", "oneOf", "allOf") for part in schema.get(name, ())]
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        inner.append(target)
    for part in inner:
        yield from _types(part, root, depth - 1)


def _colon(body: str, tools: Tools) -> list[Call] | None:
    """Read `call:name{...}`, whose keys have no quotes and whose texts have quotes of their own."""

    def quoted(found: re.Match[str]) -> str:
        own, plain, key = found.groups()
        return plain if plain is not None else json.dumps(key if own is None else own)

    if (found := _COLON.fullmatch(body.replace("<escape>", '<|"|>'))) is None:
        return None
    arguments = _COLON_TOKEN.sub(quoted, found[2])
    try:
        return [Call(found[1], spelled(json.loads(arguments, strict=False)))]
    except ValueError:
        return None


def _named(body: str, tools: Tools) -> list[Call] | None:
    found = NAMED_HEAD.match(body)
    arguments = "" if found is None else body[found.end() :].strip().removesuffix("```").strip()
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


class _Literals(ast.NodeTransformer):
    """Makes Python's of JSON's literals."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name that is a literal of JSON."""
        literals = {"true": True, "false": False, "null": None}
        return ast.Constant(literals[node.id]) if node.id in literals else node


def spelled(arguments: object) -> str:
    """Write arguments as JSON, if they are not its text already."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
