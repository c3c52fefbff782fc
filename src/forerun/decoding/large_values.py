"""Schemas with an `enum` or `const` beyond 2**53, which llguidance, whose numbers are floats, writes inexactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forerun.core.errors import short_repr
from forerun.decoding.schemas import DEFINITIONS, NOTES, is_large


class LargeValues:
    """A schema with an `enum` or `const` that llguidance would not write exactly, as a grammar in Lark's notation.

    Only what leads to such values is written out; all else stays a schema. Raises ValueError for what cannot be.
    """

    def __init__(self, schema: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
        self._whole, self._layout = schema, layout
        self._names: dict[str, str] = {}
        self._rules: dict[str, str] = {}

    def lark(self) -> str:
        """Return the grammar."""
        start = self._rule(self._whole)
        return "\n".join([f"start: {start}", *(f"{n}: {rule}" for n, rule in self._rules.items())])

    def _rule(self, schema: Any) -> str:
        """Return the name of a schema's rule, made once: schemas may hold themselves."""
        key = json.dumps(schema)
        if key not in self._names:
            name = self._names[key] = f"r{len(self._names)}"
            self._rules[name] = self._body(schema)
        return self._names[key]

    def _body(self, schema: Any) -> str:
        if not self._leads_to_large(schema):
            shared = {key: self._whole[key] for key in DEFINITIONS if key in self._whole}
            own = (
                {**shared, **schema}
                if isinstance(schema, Mapping)
                else {"allOf": [schema], **shared}
            )
            return f"%json {json.dumps({**own, 'x-guidance': self._layout})}"
        if "const" in schema or "enum" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return " | ".join(_text(json.dumps(v, ensure_ascii=False)) for v in values)
        known = {name: schema[name] for name in schema if name not in (*NOTES, *DEFINITIONS)}
        if "$ref" in known and len(known) == 1:
            return self._rule(self._found(known["$ref"]))
        for name in ("anyOf", "oneOf", "allOf"):
            if name in known and len(known) == 1 and (name != "allOf" or len(known[name]) == 1):
                return " | ".join(map(self._rule, known[name]))
        types = known.pop("type", None)
        if isinstance(types, list):
            return " | ".join(self._rule({**known, "type": one}) for one in types)
        write = {"array": self._array, "object": self._object}
        if types not in write:
            raise ValueError(
                f"values beyond 2**53 need the type of what holds them, got {short_repr(types)}"
            )
        return write[types]({**known, "type": types})

    def _leads_to_large(self, schema: Any) -> bool:
        """Tell whether a schema, or one that it refers to, has a value that is too large."""
        seen: set[str] = set()
        level = [schema]
        while level:
            one = level.pop()
            level += one if isinstance(one, list) else []
            for name, part in one.items() if isinstance(one, Mapping) else ():
                if name in ("const", "enum") and is_large(part):
                    return True
                if name == "$ref" and isinstance(part, str) and part not in seen:
                    seen.add(part)
                    level.append(self._found(part))
                elif name not in DEFINITIONS:
                    level.append(part)
        return False

    def _found(self, ref: str) -> Any:
        found: Any = self._whole
        try:
            for part in ref.removeprefix("#").strip("/").split("/") if ref != "#" else ():
                found = found[part.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError) as error:
            raise ValueError(f"there is no schema at {short_repr(ref)}") from error
        return found

    def _object(self, schema: Mapping[str, Any]) -> str:
        """Write an object's properties in their order, those that are required in any case."""
        _only(schema, "properties", "required", "additionalProperties")
        others = schema.get("additionalProperties")
        required, parts = schema.get("required", ()), [*schema.get("properties", {}).items()]
        if parts and others not in (None, False, True):
            raise ValueError(
                "values beyond 2**53 go with properties or additionalProperties, not both"
            )
        if not parts:
            pair = (
                f'%json {{"type": "string"}} ": " {self._rule(True if others is None else others)}'
            )
            pair = self._named(pair)
            return f'"{{" ({pair} (", " {pair})*)? "}}"'
        first, rest = '"}"', '"}"'  # what may come where nothing has come yet, and after something
        for name, part in reversed(parts):
            pair = f"{_text(f'{json.dumps(name, ensure_ascii=False)}: ')} {self._rule(part)} {rest}"
            is_needed = name in required
            first = self._named(pair if is_needed else f"{pair} | {first}")
            rest = self._named(f'", " {pair}' if is_needed else f'", " {pair} | {rest}')
        return f'"{{" {first}'

    def _array(self, schema: Mapping[str, Any]) -> str:
        _only(schema, "items", "minItems", "maxItems")
        item, least, most = (
            self._rule(schema.get("items", True)),
            schema.get("minItems", 0),
            schema.get("maxItems"),
        )
        if most == 0:
            return '"[]"'
        bounds = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        return f'"[" {item} (", " {item}){bounds} "]"' + ("" if least else ' | "[]"')

    def _named(self, body: str) -> str:
        name = f"p{len(self._rules)}"
        self._rules[name] = body
        return name


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _only(schema: Mapping[str, Any], *names: str) -> None:
    if others := schema.keys() - {"type", *names}:
        raise ValueError(f"values beyond 2**53 do not go with {min(others)}")
