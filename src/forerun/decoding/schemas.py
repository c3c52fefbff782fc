"""What JSON schemas say that llguidance does not take, put in a way that it does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
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
    for change in (_within_range, _without_names, _without_literals, _with_prefixes):
        schema = change(schema)
    return schema


def prepared(schema: Any) -> Any:
    """Return what a schema is compiled from. Raises ValueError for bounds beyond all numbers that are written."""
    return readable(closed(schema))


def of_arguments(schema: Any) -> Any:
    """Return what arguments of a call are compiled from. Raises ValueError for numbers that are too large."""
    if has_large_values(found := prepared(schema)):
        raise ValueError("an enum or const beyond 2**53 is not written exactly in calls")
    return found


def unreadable(schema: Any) -> str:
    """Say what in a schema cannot be compiled; empty if nothing is known to be."""
    try:
        level = [of_arguments(schema)]
    except ValueError as error:
        return str(error)
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
    known = {key: value for key, value in names.items() if key not in (*NOTES, "type")}
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
    rest = {key: schema[key] for key in DEFINITIONS if key in schema}
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
"""Beyond it llguidance, whose numbers are floats, writes no whole number exactly."""
FARTHEST = 1 << 62
"""Bounds are kept within it: llguidance dies of integers at -2**63."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
DEFINITIONS = ("$defs", "definitions")
NOTES = (
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


def _within_range(schema: dict[str, Any]) -> dict[str, Any]:
    """Move bounds beyond 2**53 inward to the next float within `FARTHEST`: the same, or less, is allowed."""
    large = {
        name: bound
        for name in _BOUNDS
        if isinstance(bound := schema.get(name), int | float) and abs(bound) >= LARGEST
    }
    changed = {name: value for name, value in schema.items() if name not in large}
    for name, bound in large.items():
        is_low, is_exclusive = "inimum" in name, name.startswith("exclusive")
        if abs(bound) > FARTHEST and is_low == (bound > 0):
            raise ValueError(f"{name} is {short_repr(bound)}: numbers beyond 2**62 are not written")
        inward = float(min(max(bound, -FARTHEST), FARTHEST))
        is_inside = inward > bound if is_low else inward < bound
        if not is_inside and (is_exclusive or inward != bound):
            inward = math.nextafter(inward, math.inf if is_low else -math.inf)
        kept, other, pick = ("minimum", "maximum", max) if is_low else ("maximum", "minimum", min)
        changed[kept] = pick(int(inward), changed.get(kept, int(inward)))
        if is_low == (bound > 0):  # llguidance takes no range of such numbers that is open
            changed.setdefault(other, FARTHEST if is_low else -FARTHEST)
    return changed


def has_large_values(schema: Any) -> bool:
    """Tell whether an `enum` or `const` of a schema holds a number that llguidance would write otherwise."""
    level = [schema]
    while level:
        one = level.pop()
        if isinstance(one, Mapping):
            if is_large([one.get("const"), one.get("enum")]):
                return True
            _mapped(one, level.append)
    return False


def is_large(value: object) -> bool:
    """Tell whether a value is, or holds, a number that llguidance would write otherwise."""
    if isinstance(value, Mapping | list):
        return any(map(is_large, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) > LARGEST
