"""What JSON schemas say that llguidance does not take, put in a way that it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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


def without_unknown_formats(schema: Any) -> Any:
    """Return the schema without the formats that are no rule here."""
    if not isinstance(schema, Mapping):
        return schema
    schema = _mapped(schema, without_unknown_formats)
    if schema.get("format") not in _FORMATS:
        schema.pop("format", None)
    return schema


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
