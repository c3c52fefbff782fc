"""Calls of models that drift from their form: names and values without quotes, or with single ones.

    {name: f, arguments: {'x': it's, y: 1}}    call:f{x:1,y:<|"|>text<|"|>}    f(x='it's', y=1)    f x=1 y="two"

The offered tools' schemas judge: a call is one of a tool that is offered, and what has no quotes has the type that its
schema says. What is cut is not a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from forerun.text.parsing.tags import SchemaTypes, Tools, typed

_QUOTES = ('<|"|>', "<escape>", '"""', "'''", '"', "'")
_SPACE = re.compile(r"[\s,;]*")
_KEY = re.compile(r"""\s*(?:"([^"]*)"\s*|'([^']*)'\s*|([^\s:={}\[\]"',][^:={}\[\]]*))[:=]\s*""")
_KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=\s*")
_NEXT_KEY = r"""(?:"[^"]*"\s*|'[^']*'\s*|[^\s,:={}\[\]"'][^,:={}\[\]]*)[:=]"""
_IN_OBJECT = re.compile(rf"\s*+(?:,\s*{_NEXT_KEY}|,?\s*\}})"), re.compile(r"[,}]")
_IN_LIST = re.compile(r"\s*[,\]]"), re.compile(r"[,\]]")
_IN_CALL = re.compile(r"\s*+(?:,\s*[^\W\d]\w*\s*=|,?\s*\))"), re.compile(r"[,)]")
_IN_LINE = re.compile(r"[\s,]+[^\W\d]\w*\s*=|\s*\Z"), re.compile(r"(?<![\s,])[\s,]|\Z")
_Follow = tuple[re.Pattern[str], re.Pattern[str]]
"""What stands behind a value, and what that may begin with: so all takes linear time."""
_HEAD = re.compile(r"[\s,;\[]*([^\s()\[\]{}=,\"']+)(?:\s*(\()|\s+(?=[^\W\d]\w*\s*=))")


class Bare(str):
    """A value that was written without quotes."""

    __slots__ = ()


class _Reader:
    """Reads values from a text. Raises ValueError where it does not go on as it must."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def skip(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go behind a pattern, if it is there."""
        if found := pattern.match(self.text, self.at):
            self.at = found.end()
        return found

    def value(self, follow: _Follow) -> Any:
        """Read a value, behind which stands what `follow` says."""
        if self.text.startswith("{", self.at):
            return self.object()
        if self.text.startswith("[", self.at):
            return self.items()
        for quote in _QUOTES:
            if self.text.startswith(quote, self.at):
                return self.quoted(quote, follow)
        start, end = self.at, -1
        while end < 0:
            found = follow[1].search(self.text, self.at)
            if found is None:
                raise ValueError("it is cut")
            end = found.start() if follow[0].match(self.text, found.start()) else -1
            self.at = found.start() + 1
        self.at = end
        if not (bare := self.text[start:end].strip()):
            raise ValueError("no value")
        return Bare(bare)

    def quoted(self, quote: str, follow: _Follow) -> str:
        """Read a text: a quote ends it where what stands behind a value follows."""
        start = end = self.at + len(quote)
        while True:
            end = self.text.find(quote, end)
            if end < 0:
                raise ValueError("it is cut")
            first = end
            while first > start and self.text[first - 1] == "\\":
                first -= 1
            is_escaped = (end - first) % 2 == 1 and quote not in _QUOTES[:2]
            if not is_escaped and follow[0].match(self.text, end + len(quote)):
                break
            end += 1
        before, self.at = self.text[start:end], end + len(quote)
        return before if quote in _QUOTES[:2] else _unescaped(before)

    def object(self) -> dict[str, Any]:
        """Read an object."""
        self.at, found = self.at + 1, dict[str, Any]()
        while True:
            self.skip(_SPACE)
            if self.text.startswith("}", self.at):
                self.at += 1
                return found
            key = self.skip(_KEY)
            if key is None:
                raise ValueError("no key")
            name = next(one for one in key.groups() if one is not None).rstrip()
            found[name] = self.value(_IN_OBJECT)

    def items(self) -> list[Any]:
        """Read a list."""
        self.at, found = self.at + 1, list[Any]()
        while True:
            self.skip(_SPACE)
            if self.text.startswith("]", self.at):
                self.at += 1
                return found
            found.append(self.value(_IN_LIST))

    def keywords(self, follow: _Follow) -> dict[str, Any]:
        """Read `x=1, y=2`."""
        found = dict[str, Any]()
        while key := self.skip(_KEYWORD):
            found[key[1]] = self.value(follow)
            self.skip(_SPACE)
        return found


def _unescaped(text: str) -> str:
    """Read the escapes in a text, as far as they are some."""
    written = re.sub(r"\\(['\n])|(\")", lambda one: one[1] or r"\"", text)
    written = re.sub(r'\\\\"', r"\"", written) if '\\"' in text else written
    try:
        return str(json.loads(f'"{written}"', strict=False))
    except ValueError:
        return text


def read_object(text: str) -> dict[str, Any]:
    """Read a whole text that is an object. Raises ValueError."""
    reader = _Reader(text.strip())
    if not reader.text.startswith("{"):
        raise ValueError("no object")
    found = reader.object()
    if reader.text[reader.at :].strip():
        raise ValueError("more than an object")
    return found


def written(value: Any, schema: object, types: SchemaTypes) -> str:
    """Write a value as JSON; one without quotes as its schema has it."""
    said = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Bare):
        return typed(value, schema, types)
    if isinstance(value, dict):
        named = said.get("properties")
        known = named if isinstance(named, Mapping) else {}
        pairs = (
            f"{json.dumps(key, ensure_ascii=False)}: {written(one, known.get(key), types)}"
            for key, one in value.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(written(one, said.get('items'), types) for one in value)}]"
    return json.dumps(value, ensure_ascii=False)


def resolved(name: str, tools: Tools) -> str:
    """Find the offered tool that a name with a namespace before it means: `functions.f`; else the name as it is."""
    short = re.split(r"[.:/]", name)[-1]
    return short if name not in tools and short in tools else name


def keyword_calls(body: str, tools: Tools) -> Iterator[tuple[str, str]]:
    """Yield the calls in a text that is `f(x=1)` alone, several of them, or `f x=1`. Raises ValueError."""
    reader = _Reader(body.strip().removesuffix("]").rstrip())
    while reader.at < len(reader.text):
        head = reader.skip(_HEAD)
        name = "" if head is None else resolved(head[1], tools)
        if head is None or name not in tools:
            raise ValueError("no tool")
        given = reader.keywords(_IN_CALL if head[2] else _IN_LINE)
        if head[2]:
            if not reader.text.startswith(")", reader.at):
                raise ValueError("it is cut")
            reader.at += 1
        yield name, written(given, tools[name], SchemaTypes(tools[name]))
        reader.skip(_SPACE)
