"""What JSON schemas say that llguidance does not take, put in a way that it does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from forerun.core.errors import short_repr
from forerun.core.structured import closed

_FORMATS = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uuid",
    "unknown",
]
"""Those that it enforces. Others are annotations (JSON Schema 2020-12, validation, 7.2.1)."""

_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "additionalItems"),
)


_LOOKS = re.compile(r"\(\?<?[=!]")
"""A look-around in an expression."""
_NUMBERS = ("integer", "number")
_TYPES = ("string", *_NUMBERS, "boolean", "null", "object", "array")
_UNSUPPORTED = ("contains", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "if")
_LITERAL = re.compile(r"\^([\w -]+)\$")
"""An expression that is one text."""


def readable(schema: Any) -> Any:
    """Return what allows the same, or less, as libraries write it and llguidance reads it.

    Formats that are no rule here are left out, and so are expressions that look around where a format holds as well,
    and what nothing fits, or cannot be read, where another branch of a union is left.
    """
    if not isinstance(schema, Mapping):
        return schema
    schema = _mapped(schema, readable)
    if schema.get("format") not in _FORMATS:
        schema.pop("format", None)
    if "format" in schema and _looks_around(schema):
        del schema["pattern"]
    for name in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(name), list):
            some = [part for part in parts if not _fits_nothing(part)]
            schema[name] = [part for part in some if not _looks_around(part)] or some or parts
    for change in (_without_names, _without_literals, _with_prefixes):
        schema = change(schema)
    return schema


def prepared(schema: Any) -> Any:
    """Return what a schema is compiled from."""
    return readable(closed(schema))


def unreadable(schema: Any) -> str:
    """Say what in a schema cannot be compiled; empty if nothing is known to be."""
    level = [prepared(schema)]
    while level:
        one = level.pop()
        if not isinstance(one, Mapping):
            continue
        types = one.get("type", ())
        kinds = [types] if isinstance(types, str) else types
        found = [name for name in _UNSUPPORTED if name in one]
        found += [f"type {short_repr(kind)}" for kind in kinds if kind not in _TYPES]
        if _looks_around(one):
            found.append("a pattern that looks around")
        if found:
            return found[0]
        _mapped(one, level.append)
    return ""


def _looks_around(schema: Any) -> bool:
    pattern = schema.get("pattern") if isinstance(schema, Mapping) else None
    return isinstance(pattern, str) and _LOOKS.search(pattern) is not None


def _fits_nothing(schema: Any) -> bool:
    return schema is False or (
        isinstance(schema, Mapping) and [*schema] == ["not"] and schema["not"] in ({}, True)
    )


def _without_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Write `propertyNames` as properties, of texts, or of an expression; zod's records have them."""
    names = schema.get("propertyNames")
    is_open = not schema.keys() & {"properties", "patternProperties"}
    if not isinstance(names, Mapping) or not is_open or schema.get("type") != "object":
        return schema
    known = {key: value for key, value in names.items() if key not in (*_NOTES, "type")}
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    value = schema.get("additionalProperties", {})
    if not known:
        return rest
    if [*known] == ["enum"]:
        properties = {str(name): value for name in known["enum"]}
        return rest | {"properties": properties, "additionalProperties": False}
    if [*known] == ["pattern"]:
        properties = {known["pattern"]: value}
        return rest | {"patternProperties": properties, "additionalProperties": False}
    return schema


def _without_literals(schema: dict[str, Any]) -> dict[str, Any]:
    """Write a pattern of properties that is the name of one beside that one's own schema."""
    properties, patterns = schema.get("properties"), schema.get("patternProperties")
    if not (isinstance(properties, Mapping) and isinstance(patterns, Mapping)):
        return schema
    named = {found[1]: key for key in patterns if (found := _LITERAL.fullmatch(key))}
    both = {name: key for name, key in named.items() if name in properties}
    if not both:
        return schema
    changed = {name: {"allOf": [properties[name], patterns[key]]} for name, key in both.items()}
    rest = {key: part for key, part in patterns.items() if key not in both.values()}
    schema = {**schema, "properties": {**properties, **changed}, "patternProperties": rest}
    if not rest:
        del schema["patternProperties"]
    return schema


def _with_prefixes(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow what llguidance forgets: numbers whose digits are the first ones of a bound, as 0.7 of 0.75."""
    types = schema.get("type")
    if types != "number" and not (isinstance(types, list) and "number" in types):
        return schema
    values = [bound for name in _BOUNDS if isinstance(bound := schema.get(name), float)]
    shown = [str(bound) for bound in values if "e" not in str(bound)]
    first = {float(one[:end]) for one in shown for end in range(one.index(".") + 2, len(one))}
    fine = sorted(one for one in first if _is_within(one, schema))
    rest = {key: schema[key] for key in _DEFINITIONS if key in schema}
    return {"anyOf": [schema, {"enum": fine}], **rest} if fine else schema


def _is_within(value: float, schema: Mapping[str, Any]) -> bool:
    low, high, above, below = (schema.get(name) for name in _BOUNDS)
    step = schema.get("multipleOf")
    return (
        (low is None or value >= low)
        and (high is None or value <= high)
        and not (isinstance(above, int | float) and value <= above)
        and not (isinstance(below, int | float) and value >= below)
        and step is None
        and not schema.keys() & {"enum", "const", "not", *_IN_LISTS}
    )


def _mapped(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy whose parts that are schemas are changed; values, such as an `enum`'s, are left."""
    changed = {**schema}
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, Mapping):
            changed[name] = {key: change(part) for key, part in value.items()}
        elif name in (*_IN_LISTS, "items") and isinstance(value, list):
            changed[name] = [*map(change, value)]
        elif name in _SINGLE:
            changed[name] = change(value)
    return changed


LARGEST = 1 << 53
"""Beyond it llguidance, whose numbers are floats, neither writes nor bounds whole numbers exactly."""
NO_BOUND = 10**40
"""Bounds beyond it are left out: they are those of a type, such as a float's, and would take hundreds of rules."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_DEFINITIONS = ("$defs", "definitions")
_NOTES = (
    "title",
    "description",
    "default",
    "examples",
    "format",
    "$schema",
    "$id",
    "$comment",
    "deprecated",
)


class LargeNumbers:
    """A schema with numbers that llguidance does not hold exactly, as a grammar in Lark's notation.

    Only what leads to such numbers is written out; all else stays a schema. Raises ValueError for what cannot be.
    """

    def __init__(self, schema: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
        self._whole, self._layout = schema, layout
        self._names: dict[str, str] = {}
        self._rules: dict[str, str] = {}

    @staticmethod
    def are_in(schema: object) -> bool:
        """Tell whether a schema has any."""
        if isinstance(schema, Mapping):
            return any(map(LargeNumbers.are_in, schema.values()))
        if isinstance(schema, list):
            return any(map(LargeNumbers.are_in, schema))
        return isinstance(schema, int | float) and math.isfinite(schema) and abs(schema) > LARGEST

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
            shared = {key: self._whole[key] for key in _DEFINITIONS if key in self._whole}
            own = (
                {**shared, **schema}
                if isinstance(schema, Mapping)
                else {"allOf": [schema], **shared}
            )
            return f"%json {json.dumps({**own, 'x-guidance': self._layout})}"
        if "const" in schema or "enum" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return " | ".join(_text(json.dumps(v, ensure_ascii=False)) for v in values)
        known = {name: schema[name] for name in schema if name not in (*_NOTES, *_DEFINITIONS)}
        if "$ref" in known and len(known) == 1:
            return self._rule(self._found(known["$ref"]))
        for name in ("anyOf", "oneOf", "allOf"):
            if name in known and len(known) == 1 and (name != "allOf" or len(known[name]) == 1):
                return " | ".join(map(self._rule, known[name]))
        types = known.pop("type", None)
        if isinstance(types, list):
            plain = {name: value for name, value in known.items() if name not in _BOUNDS}
            either = ({**(known if one in _NUMBERS else plain), "type": one} for one in types)
            return " | ".join(map(self._rule, either))
        write = {
            "integer": self._number,
            "number": self._number,
            "array": self._array,
            "object": self._object,
        }
        if types not in write:
            raise ValueError(
                f"numbers beyond 2**53 need a type beside them, got {short_repr(types)}"
            )
        return write[types]({**known, "type": types})

    def _leads_to_large(self, schema: Any) -> bool:
        """Tell whether a schema, or one that it refers to, has a value or a bound that is too large."""
        seen: set[str] = set()
        level = [schema]
        while level:
            one = level.pop()
            level += one if isinstance(one, list) else []
            for name, part in one.items() if isinstance(one, Mapping) else ():
                if name in ("const", "enum", *_BOUNDS) and self.are_in(part):
                    return True
                if name == "$ref" and isinstance(part, str) and part not in seen:
                    seen.add(part)
                    level.append(self._found(part))
                elif name not in _DEFINITIONS:
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
                "numbers beyond 2**53 go with properties or additionalProperties, not both"
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

    def _number(self, schema: Mapping[str, Any]) -> str:
        """Write a number: llguidance's up to 2**53, digit by digit beyond."""
        _only(schema, *_BOUNDS)
        low, high, above, below = (_bound(schema, name) for name in _BOUNDS)
        up, down = (low, above), (_negative(high), _negative(below))
        fraction = r"(\.[0-9]+)?" if schema["type"] == "number" else ""
        ranges = [*_beyond(up, down, fraction)]
        ranges += ["-" + each for each in _beyond(down, up, fraction)]
        found = [f"/({'|'.join(ranges)})/"] if ranges else []
        if max(_first(up), _first(down)) <= LARGEST:
            small = {name: value for name, value in schema.items() if not self.are_in(value)}
            found.append(self._rule({"minimum": -LARGEST, "maximum": LARGEST, **small}))
        if not found:
            raise ValueError(f"no number is within the bounds of {short_repr(schema)}")
        return " | ".join(found)

    def _named(self, body: str) -> str:
        name = f"p{len(self._rules)}"
        self._rules[name] = body
        return name


_Bounds = tuple[float | None, float | None]
"""Of numbers from below: what they are at least, and what they are above. From above: the same of their negatives."""


def _bound(schema: Mapping[str, Any], name: str) -> float | None:
    value: float | None = schema.get(name)
    return None if value is None or abs(value) > NO_BOUND else value


def _negative(bound: float | None) -> float | None:
    return None if bound is None else -bound


def _first(bounds: _Bounds) -> float:
    """Return the first whole number."""
    least, above = bounds
    first = -math.inf if least is None else math.ceil(least)
    return first if above is None else max(first, math.floor(above) + 1)


def _beyond(up: _Bounds, down: _Bounds, fraction: str) -> Iterator[str]:
    """Yield expressions for the numbers above 2**53; what may stand behind their whole part is `fraction`."""
    first, end = int(max(LARGEST + 1, _first(up))), -_first(down)
    last = None if end == math.inf else int(end)
    if fraction and last is not None and last >= first and -last == down[0]:
        yield rf"{last}(\.0+)?"  # the bound itself
        last -= 1
    yield from (each + fraction for each in digits(first, last))


def digits(low: int, high: int | None) -> Iterator[str]:
    """Yield expressions that together match the whole numbers from `low`, which is above 0, to `high`."""
    if high is None:
        yield from digits(low, 10 ** len(str(low)) - 1)
        yield f"[1-9][0-9]{{{len(str(low))},}}"
        return
    while low <= high:
        end = min(high, 10 ** len(str(low)) - 1)  # of as many digits
        yield from _between(str(low), str(end))
        low = end + 1


def _between(low: str, high: str) -> Iterator[str]:
    """Yield expressions for texts of digits, equally long, from one to the other."""
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    head, low, high = low[:same], low[same:], high[same:]
    if not low:
        yield head
        return
    left, first, last = len(low) - 1, int(low[0]), int(high[0])
    if low[1:].strip("0"):
        yield from (head + low[0] + rest for rest in _between(low[1:], "9" * left))
        first += 1
    if high[1:].strip("9"):
        yield from (head + high[0] + rest for rest in _between("0" * left, high[1:]))
        last -= 1
    if first <= last:
        yield f"{head}[{first}-{last}]" + f"[0-9]{{{left}}}" * bool(left)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _only(schema: Mapping[str, Any], *names: str) -> None:
    if others := schema.keys() - {"type", *names}:
        raise ValueError(f"numbers beyond 2**53 do not go with {min(others)}")
