"""The grammar of calls as a family writes them (`text/parsing/forms.py`), in Lark's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from forerun.core.errors import RequestError
from forerun.core.structured import LAYOUT
from forerun.decoding import gbnf, schemas
from forerun.text.parsing.families import HERMES_CALLS
from forerun.text.parsing.tags import TYPES, SchemaTypes, Tools
from forerun.text.parsing.written_calls import WrittenCalls

MAX_CALLS = 8
"""Calls that an answer may hold where they are required."""
MAX_NBYTES = 512_000
"""Bytes of the rules that are written for the tools of a request: a hundred tools have a fifth of it."""
_NOTES = ("title", "description", "default", "examples", "$schema", "$id", "$comment")
_DEFINITIONS = ("$defs", "definitions")
_KNOWN = {"type", "properties", "required", "additionalProperties", *_DEFINITIONS, *_NOTES}
"""What a schema may say of arguments that are written as pairs."""
_TYPES = {*TYPES.values(), "null"}
_WORDS = {"boolean": '"True" | "False"', "null": '"None"'}
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_SIMPLE = re.compile(r"(\^?)((?:[^\^$\\(]|\\[^bB]|\((?!\?)|(?<=\[)\^)+)(\$?)")
"""An expression without anchors but at its ends, nor anything that looks ahead."""


def in_lark(text: str, control: Mapping[str, int], args: str = "") -> str:
    """Write a text for a grammar: control tokens, whose ids these are, as such, ids and numbers of calls as any."""
    parts = {"$args": args, "$id": "/[A-Za-z0-9]{9}/", "$0": "/[0-9]+/", "$1": "/[0-9]+/"}
    parts |= {mark: f"<[{i}]>" for mark, i in control.items() if mark in text}
    pieces = re.split(f"({'|'.join(map(re.escape, parts))})", text)
    return " ".join(parts.get(one) or json.dumps(one) for one in pieces if one) or '""'


def in_json(schema: object) -> str:
    """Write a schema for a grammar, with the layout of all that is written as JSON. Raises RequestError."""
    try:
        given = schemas.of_arguments(schema) if isinstance(schema, Mapping) else {}
    except ValueError as error:
        message = f"the parameters of a tool cannot be used: {error}"
        raise RequestError(message, option="tools") from error
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
        fits = not written.pair or all(_fits(written, *one) for one in tools.items())
        self.written, self._tools, self._control = written if fits else HERMES_CALLS, tools, control
        self._others = "".join(f" & ~/(?s:.*){gbnf.spelled(mark)}(?s:.*)/" for mark in marks)
        self._names: dict[str, str] = {}
        """By what stands behind the name: a rule that several parameters have is written once."""
        self._nbytes = 0

    def rules(self, *, is_parallel: bool, behind: str = "") -> list[str]:
        """Return the lines of the rule `calls`; the text `behind` which they stand is left out of them.

        Raises RequestError for tools whose rules would be too large.
        """
        written, several = self.written, ""
        bodies = {name: self._arguments(schema) for name, schema in self._tools.items()}

        def either(call: str) -> str:
            calls = (self.text(call.replace("$name", one), body) for one, body in bodies.items())
            return " | ".join(map(self._rule, calls))

        if is_parallel and written.between is not None:
            others = f"{self.text(written.between)} ({either(written.call)})"
            several = f" ({others}){{0,{MAX_CALLS - 1}}}"
        first = either(written.call.replace("$0", "0").replace("$1", "1"))
        before, after = self.text(written.open.removeprefix(behind)), self.text(written.close)
        lines = (f"{name}{said}" for said, name in self._names.items())
        return [f"calls: {before} ({first}){several} {after}", *lines]

    def text(self, text: str, args: str = "") -> str:
        """Write a text, control tokens as such, and the rule of `$args`."""
        return in_lark(text, self._control, args)

    def _rule(self, body: str, kind: str = "r", flag: str = "") -> str:
        """Return the name of a rule; `kind` begins it, and a new one is flagged where it is written."""
        said = f"{flag}: {body}"
        if (known := self._names.get(said)) is not None:
            return known
        self._names[said] = name = f"{kind}{len(self._names)}"
        self._nbytes += len(name) + len(said)
        if self._nbytes > MAX_NBYTES:
            what = (
                f"the grammar of calls to {len(self._tools)} tools has more than {MAX_NBYTES} bytes"
            )
            raise RequestError(f"{what}: give fewer tools, or simpler ones", option="tools")
        return name

    def _arguments(self, schema: Mapping[str, Any]) -> str:
        """Write an object of a function's arguments: of nothing if it has no parameters."""
        if not self.written.pair:
            nothing = {"properties": {}, "additionalProperties": False}
            return self._rule(in_json({"type": "object", **(schema or nothing)}))
        types = SchemaTypes(schema)
        first, rest = ['""'], ""
        for key, part in reversed((schema.get("properties") or {}).items()):
            pair = self._rule(f"({' | '.join(self._values(part, schema, types, key))}) {rest}")
            is_needed = key in schema.get("required", ())
            first = [pair, *([] if is_needed else first)]
            rest = f"{self.text(self.written.comma)} {pair}" + ("" if is_needed else f" | {rest}")
            rest = self._rule(rest)
        return self._rule(" | ".join(first))

    def _values(
        self, schema: Any, root: Mapping[str, Any], types_of: SchemaTypes, key: str
    ) -> Iterator[str]:
        """Yield what a parameter may be: what stands before its value, the value, what stands behind it."""
        written, has_words = self.written, "word" in self.written.pair
        said = schema if isinstance(schema, Mapping) else {}
        if "const" in said or isinstance(said.get("enum"), list):
            for value in [said["const"]] if "const" in said else said["enum"]:
                before, after = written.around(key, TYPES.get(type(value), "null"))
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                text = str(value) if has_words and isinstance(value, bool | None) else text
                if isinstance(value, str) and written.is_python:
                    text = re.sub(r"[\\']", r"\\\g<0>", text)
                yield f"{self.text(before)} {json.dumps(text)} {self.text(after)}"
            return
        types = types_of.of(schema) & _TYPES or _TYPES
        plain = written.around(key, "string")
        if "string" in types:
            yield f"{self.text(plain[0])} {self._string(said, plain[1])}"
        shared = {name: root[name] for name in _DEFINITIONS if name in root}
        for kind in sorted(types - {"string"}):
            before, after = written.around(key, kind)
            if "string" in types and (before, after) == plain:
                continue  # it is a text that may be written
            own = schema if types == {kind} else {"allOf": [schema, {"type": kind}]}
            text = in_json({**shared, **own})
            text = _WORDS.get(kind, text) if has_words else text
            yield f"{self.text(before)} ({text}) {self.text(after)}"

    def _string(self, limits: Mapping[str, Any], after: str) -> str:
        """Write a text and what stands behind it, which is its end."""
        times = "*"
        if "minLength" in limits or "maxLength" in limits:
            times = f"{{{limits.get('minLength', 0)},{limits.get('maxLength', '')}}}"
        expressions = [f"(?s:.){times}"]
        if (pattern := _SIMPLE.fullmatch(str(limits.get("pattern", "")))) is not None:
            ends = ("" if pattern[i] else "(?s:.*)" for i in (1, 3))
            inner = re.sub(r"(?<!\\)/", r"\/", pattern[2])
            expressions.append(f"({inner})".join(ends))
        if self.written.is_python:
            expressions.append(r"([^'\\\n\r]|\\[\\nrt'])*")
        marks = "|".join(map(re.escape, self._control))
        end = "" if self.written.is_python else re.split(marks, after)[0] if marks else after
        spelled = (f"/({one}){gbnf.spelled(end)}/" for one in expressions)
        text = " & ".join(spelled)
        kind, flag = ("t", "[lazy]") if end else ("T", "")
        name = self._rule(f"{text}{self._others}", kind, flag)
        return f"{name} {self.text(after.removeprefix(end))}"


def _fits(written: WrittenCalls, name: str, schema: Mapping[str, Any]) -> bool:
    """Tell whether calls of a function can be written as pairs and read back."""
    named, required = schema.get("properties") or {}, schema.get("required", [])
    is_name = _is_identifier if written.is_python else _NAME.fullmatch
    return (
        isinstance(named, Mapping)
        and schema.keys() <= _KNOWN
        and (bool(named) or not schema.get("additionalProperties"))
        and isinstance(required, list)
        and all(key in named for key in required)
        and all(map(is_name, named))
        and (not written.is_python or _is_identifier(name))
    )


def _is_identifier(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name)
