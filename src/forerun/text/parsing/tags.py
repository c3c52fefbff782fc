"""Calls whose names and values are tags.

    <function=f><parameter=x>1</parameter></function>, <invoke name="f"><parameter name="x">1</parameter></invoke>
    f<arg_key>x</arg_key><arg_value>1</arg_value>
    <|open|>call tool="f"<|sep|><|open|>argument key="x"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>
    <invoke name="f"><x>1</x></invoke>, a mark of MiniMax M3's before each tag

A value has the type that the tool's schema says.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from forerun.text.parsing.json_text import repaired

Tools = Mapping[str, Mapping[str, Any]]
"""By name of a function that is offered: the JSON schema of its arguments."""

M3_MARK = "]<]minimax[>["
SIGNS = {"｜DSML｜": "", "atem:": "", ":opensource": "", "<tool_sep>": ""}
SIGNS |= {"<|open|>": "<", "<|close|>": "</", "<|sep|>": ">"}
"""What DeepSeek, Muse and Hunyuan write within tags or beside them, and Kimi K3 for their signs."""
_FUNCTION = re.compile(
    r'<(?:function=|(?:function|invoke) name=|call tool=)"?([^"<>]+)(?:"[^<>]*)?>(.*?)'
    r"(?:</(?:function|invoke|call)>(?=\s*(?:<(?:/|function|invoke|call )|\]|$))|$)",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r'<(?:param(?:eter)?(=| name=)|argument( key=))"?([^"<>]+)(?:"[^<>]*)?>(.*?)'
    r"(?:</(?:param(?:eter)?|argument)>(?=\s*(?:<(?:param(?:eter)?[ =]|argument )|$))|$)",
    re.DOTALL,
)
_CDATA = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_TAG = re.compile(rf"{re.escape(M3_MARK)}<(/?)([^<>]+)>")
_PAIRS = re.compile(r"\s*+([\w.:/@#~+-]++)\s*+((?:<arg_key>.*</arg_value>)?)\s*+", re.DOTALL)
_PAIR = re.compile(
    r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>(?=\s*(?:<arg_key>|$))|$)",
    re.DOTALL,
)
_FIRST = re.compile(r"<(?:function=|(?:function|invoke) name=|call tool=)")
_LAST = re.compile(
    r"(?:</(?:function|invoke|call|param(?:eter)?|argument|arg_value)>"
    r"|<(?:function=|function name=|invoke name=|call tool=)[^<>]+>|\]<\]minimax\[></[^<>]+>)\s*\Z"
)
"""What the last tag of a call may be."""
TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
_LONGEST = 512
"""Letters of a last tag, at most."""
_WORDS = {"True": "true", "False": "false", "None": "null"}


def read_tags(body: str, tools: Tools) -> list[tuple[str, str]]:
    """Return the names in a body of calls, and the arguments as JSON."""
    for written, plain in SIGNS.items():
        body = body.replace(written, plain)
    found = [(name, _parameters(inner), inner) for name, inner in _FUNCTION.findall(body)]
    if not found and (alone := _PAIRS.fullmatch(body)) is not None:
        if not alone[2] and alone[1] not in tools:
            return []
        found = [(alone[1], _PAIR.findall(alone[2]), "")]
    calls = []
    for name, pairs, inner in found:
        name = name.strip()
        if not pairs and inner.strip().startswith("{"):  # <function=f>{"x": 1}</function>
            calls.append((name, repaired(inner.strip())))
        else:
            schema = tools.get(name, {})
            calls.append((name, _object(pairs or _children(inner), schema, SchemaTypes(schema))))
    return calls


def _parameters(text: str) -> list[tuple[str, str]]:
    """Return the parameters in a function's text."""
    return [(name, without_lines(value)) for _, _, name, value in _PARAMETER.findall(text)]


def without_lines(value: str) -> str:
    """Return a parameter's value without the ends of lines around it, if it stands on lines of its own.

    Qwen writes values so; where others do not, the last end of a line is the value's.
    """
    begun = value.removeprefix("\n")
    return value if begun == value else begun.removesuffix("\n")


def is_whole(body: str) -> bool | None:
    """Tell whether a body of tags ends where a call may; None for one without tags."""
    for sign, plain in SIGNS.items():
        body = body.replace(sign, plain)
    if "<arg_key>" in body or _FIRST.search(body):
        return _LAST.search(body[-_LONGEST:]) is not None
    return None


def _children(text: str) -> list[tuple[str, str]]:
    """Return the outermost of MiniMax M3's tags in a text, and what stands in each."""
    found, depth, name, start = [], 0, "", 0
    for tag in _TAG.finditer(text):
        if not tag[1]:
            name, start = (name, start) if depth else (tag[2], tag.end())
        elif depth == 1:
            found.append((name, text[start : tag.start()]))
        depth += -1 if tag[1] else 1
    return found


def _object(pairs: Sequence[tuple[str, str]], schema: object, types: SchemaTypes) -> str:
    """Write names and values as a JSON object of a schema."""
    named = schema.get("properties") if isinstance(schema, Mapping) else None
    known: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
    values = (
        f"{json.dumps(key)}: {typed(value, known.get(key), types)}"
        for key, value in ((key.strip(), value) for key, value in pairs)
    )
    return f"{{{', '.join(values)}}}"


def typed(text: str, schema: object, known: SchemaTypes) -> str:
    """Write a value as JSON: a text where its schema has one, else as it stands if it is JSON or Python's."""
    if (raw := _CDATA.fullmatch(text)) is not None:  # MiniCPM5's, of texts with signs of tags
        return quoted(raw[1])
    types = known.of(schema)
    if children := _children(text):
        if {name for name, _ in children} != {"item"} or "object" in types:
            return _object(children, schema, known)
        items = schema.get("items") if isinstance(schema, Mapping) else None
        return f"[{', '.join(typed(value, items, known) for _, value in children)}]"
    word = text.strip()
    word = word if "string" in types else _WORDS.get(word, word)
    try:
        value = json.loads(word, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return _literal(word) if types <= {"array", "object", "null"} else quoted(text)
    kind = TYPES.get(type(value), "null")
    is_text = "string" in types and (kind not in types or kind in ("integer", "number", "boolean"))
    return quoted(text) if is_text else word


def quoted(text: str) -> str:
    """Write a text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> str:
    """Write a list or dictionary of Python as JSON; what is none as a text."""
    try:
        value = ast.literal_eval(text)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return quoted(text)
    return written if isinstance(value, list | dict) else quoted(text)


def _no_json(name: str) -> NoReturn:
    raise ValueError(name)


class SchemaTypes:
    """Finds the types that the parts of a schema allow, and remembers them: an answer may write a part many times."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        """`root` is the whole schema, which references point into."""
        self._root = root
        self._known: dict[int, frozenset[str]] = {}

    def of(self, schema: object) -> frozenset[str]:
        """Return the types that a part of the schema allows, as far as it says them.

        A part that several references lead to is followed once.
        """
        if not isinstance(schema, Mapping):
            return frozenset()
        if (found := self._known.get(id(schema))) is None:
            found = self._known[id(schema)] = frozenset(self._followed(schema))
        return found

    def _followed(self, schema: object) -> Iterator[str]:
        waiting, seen = [schema], set[int]()
        while waiting:
            one = waiting.pop()
            if not isinstance(one, Mapping) or id(one) in seen:
                continue
            seen.add(id(one))
            lists = {name: value for name, value in one.items() if isinstance(value, list)}
            stated = [one["type"]] if isinstance(one.get("type"), str) else lists.get("type", ())
            yield from map(str, stated)
            for value in [one["const"]] if "const" in one else lists.get("enum", ()):
                yield TYPES.get(type(value), "null")
            for name in ("anyOf", "oneOf", "allOf"):
                waiting += lists.get(name, ())
            waiting.append(self._referred(one.get("$ref")))

    def _referred(self, reference: object) -> object:
        """Return what a reference points to; None for one to elsewhere."""
        if not (isinstance(reference, str) and reference.startswith("#/")):
            return None
        target: Any = self._root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        return target
