"""The grammar of calls as a family writes them (`text/answers/written.py`), in Lark's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from forerun.core.structured import LAYOUT, closed
from forerun.decoding import gbnf
from forerun.text.answers.tags import TYPES, Tools, types_of
from forerun.text.answers.written import HERMES_CALLS, ID, KEY, NAME, NUMBER, Pairs, WrittenCalls

MAX_CALLS = 8
"""Calls that an answer may hold where they are required."""
_NOTES = ("title", "description", "default", "examples", "$schema", "$id", "$comment")
_DEFINITIONS = ("$defs", "definitions")
_KNOWN = {"type", "properties", "required", "additionalProperties", *_DEFINITIONS, *_NOTES}
"""What a schema may say of arguments that are written as pairs."""
_WORDS = {"boolean": '"True" | "False"', "null": '"None"'}
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_SIMPLE = re.compile(r"(\^?)((?:[^\^$\\(]|\\[^bB]|\((?!\?)|(?<=\[)\^)+)(\$?)")
"""An expression without anchors but at its ends, nor anything that looks ahead."""


def in_lark(text: str, control: Mapping[str, int], name: str = "", key: str = "") -> str:
    """Write a text for a grammar, control tokens, whose ids these are, as such.

    `name` and `key` take their places; ids and numbers of calls are any.
    """
    parts = {ID: f"/[A-Za-z0-9]{{{len(ID)}}}/", NUMBER: "/[0-9]+/"}
    parts |= {mark: f"<[{i}]>" for mark, i in control.items() if mark in text}
    pieces = re.split(f"({'|'.join(map(re.escape, parts))})", text)
    pieces = [
        parts.get(one) or json.dumps(one.replace(NAME, name).replace(KEY, key))
        for one in pieces
        if one
    ]
    return " ".join(pieces) or '""'


def in_json(schema: object) -> str:
    """Write a schema for a grammar, with the layout of all that is written as JSON."""
    given = closed(schema) if isinstance(schema, Mapping) else {}
    return f"%json {json.dumps({**given, 'x-guidance': LAYOUT})}"


class CallGrammar:
    """The rules of calls to functions. Those that cannot be written the family's way are written Hermes'."""

    def __init__(
        self,
        written: WrittenCalls,
        tools: Tools,
        control: Mapping[str, int],
        marks: Sequence[str] = (),
    ) -> None:
        """`control`: ids of control tokens by their texts. Texts without quotes may hold none of the `marks`."""
        fits = written.pairs is None or all(_fits(written.pairs, *one) for one in tools.items())
        self.written, self._tools, self._control = written if fits else HERMES_CALLS, tools, control
        self._others = "".join(f" & ~/(?s:.*){gbnf.spelled(mark)}(?s:.*)/" for mark in marks)
        self._lines: list[str] = []

    def rules(self, *, is_parallel: bool, behind: str = "") -> list[str]:
        """Return the lines of the rule `calls`; the text `behind` which they stand is left out of them."""
        written, several = self.written, ""
        bodies = {name: self._arguments(schema) for name, schema in self._tools.items()}

        def either(before: str) -> str:
            calls = (f"{self.text(before, name)} {body}" for name, body in bodies.items())
            return " | ".join(map(self._rule, calls))

        if is_parallel and written.then is not None:
            several = f" ({either(written.then)}){{0,{MAX_CALLS - 1}}}"
        first = either(written.open.removeprefix(behind))
        return [f"calls: ({first}){several} {self.text(written.end)}", *self._lines]

    def text(self, text: str, name: str = "", key: str = "") -> str:
        """Write a text, control tokens as such."""
        return in_lark(text, self._control, name, key)

    def _rule(self, body: str) -> str:
        """Return the name of a new rule."""
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def _arguments(self, schema: Mapping[str, Any]) -> str:
        """Write an object of a function's arguments: of nothing if it has no parameters."""
        pairs = self.written.pairs
        if pairs is None:
            nothing = {"properties": {}, "additionalProperties": False}
            return self._rule(in_json({"type": "object", **(schema or nothing)}))
        first, rest = [] if pairs.none is None else [self.text(pairs.none)], ""
        for key, part in reversed((schema.get("properties") or {}).items()):
            pair = f"{json.dumps(key)} ({' | '.join(self._values(part, schema, key))})"
            pair = self._rule(f"{pair} {rest}")
            is_needed = key in schema.get("required", ())
            first = [f"{self.text(pairs.first)} {pair}", *([] if is_needed else first)]
            rest = f"{self.text(pairs.between)} {pair}" + ("" if is_needed else f" | {rest}")
            rest = self._rule(rest)
        return self._rule(" | ".join(first))

    def _values(self, schema: Any, root: Mapping[str, Any], key: str) -> Iterator[str]:
        """Yield what may stand behind a parameter's name."""
        assert self.written.pairs is not None
        values = self.written.pairs.values
        said = schema if isinstance(schema, Mapping) else {}
        if "const" in said or isinstance(said.get("enum"), list):
            for value in [said["const"]] if "const" in said else said["enum"]:
                around = values[TYPES.get(type(value), "null")]
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                text = str(value) if around.has_words and isinstance(value, bool | None) else text
                for sign in ("\\", around.quote) if around.quote else ():
                    text = text.replace(sign, f"\\{sign}")
                yield self.text(f"{around.before}{text}{around.after}", key=key)
            return
        types = {*types_of(schema, root)} & values.keys() or {*values}
        plain = values["string"]
        if "string" in types:
            yield f"{self.text(plain.before, key=key)} {self._string(said, key)}"
        shared = {name: root[name] for name in _DEFINITIONS if name in root}
        for kind in sorted(types - {"string"}):
            around = values[kind]
            if "string" in types and (around.before, around.after) == (plain.before, plain.after):
                continue  # it is a text that may be written
            own = schema if types == {kind} else {"allOf": [schema, {"type": kind}]}
            text = in_json({**shared, **own})
            text = _WORDS.get(kind, text) if around.has_words else text
            yield f"{self.text(around.before, key=key)} ({text}) {self.text(around.after, key=key)}"

    def _string(self, limits: Mapping[str, Any], key: str) -> str:
        """Write a text and what stands behind it, which is its end."""
        assert self.written.pairs is not None
        around = self.written.pairs.values["string"]
        times = "*"
        if "minLength" in limits or "maxLength" in limits:
            times = f"{{{limits.get('minLength', 0)},{limits.get('maxLength', '')}}}"
        expressions = [f"(?s:.){times}"]
        if (pattern := _SIMPLE.fullmatch(str(limits.get("pattern", "")))) is not None:
            ends = ("" if pattern[i] else "(?s:.*)" for i in (1, 3))
            inner = re.sub(r"(?<!\\)/", r"\/", pattern[2])
            expressions.append(f"({inner})".join(ends))
        if around.quote:
            expressions.append(rf"([^{around.quote}\\\n\r]|\\[\\nrt{around.quote}])*")
        rest = around.after.replace(KEY, key)
        marks = "|".join(map(re.escape, self._control))
        end = "" if around.quote else re.split(marks, rest)[0] if marks else rest
        spelled = (f"/({one}){gbnf.spelled(end)}/" for one in expressions)
        text = " & ".join(spelled)
        name = f"t{len(self._lines)}[lazy]" if end else f"T{len(self._lines)}"
        self._lines.append(f"{name}: {text}{self._others}")
        return f"{name.removesuffix('[lazy]')} {self.text(rest.removeprefix(end))}"


def _fits(pairs: Pairs, name: str, schema: Mapping[str, Any]) -> bool:
    """Tell whether calls of a function can be written as pairs and read back."""
    named, required = schema.get("properties") or {}, schema.get("required", [])
    is_name = _is_identifier if pairs.values["string"].quote else _NAME.fullmatch
    return (
        isinstance(named, Mapping)
        and schema.keys() <= _KNOWN
        and (bool(named) or (pairs.none is not None and not schema.get("additionalProperties")))
        and isinstance(required, list)
        and all(key in named for key in required)
        and all(map(is_name, named))
        and (is_name is _NAME.fullmatch or _is_identifier(name))
    )


def _is_identifier(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name)
