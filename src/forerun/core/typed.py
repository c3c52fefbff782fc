"""Values that callers give to dataclasses, held to the annotations of their fields.

A value of another type is refused where it enters, by its field's name, before it means something else further in.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from forerun.core.errors import ForerunError, short_repr
from forerun.core.options import type_hints, type_name

MAX_ITEMS = 1 << 24
"""Of a collection: `range(10**12)` is one."""


def settle(
    owner: Any,
    error: type[ForerunError],
    allowed: Mapping[str, str] | None = None,
    checked_later: Collection[str] = (),
) -> None:
    """Set every field of a dataclass to what it was given, as its annotation has it: a list becomes a tuple.

    Raises `error` for what does not fit, with what is `allowed`, which the annotation says where nothing else does.
    """
    cls: Any = type(owner)
    for name, hint in _hints(cls).items():
        if name in checked_later:
            continue
        given = getattr(owner, name)
        try:
            value = fit(given, hint)
        except (TypeError, ValueError, OverflowError):
            words = (allowed or {}).get(name) or type_name(hint)
            message = f"{name} must be {words}, got {short_repr(given)}"
            raise error(message, option=name) from None
        if value is not given:
            object.__setattr__(owner, name, value)


def fit(value: Any, hint: Any) -> Any:
    """Return a value as an annotation has it. Raises TypeError, ValueError or OverflowError if it does not fit."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _fit_any(value, parts)
    if origin is tuple:
        return _fit_items(value, parts[0])
    if origin is Mapping and isinstance(value, Mapping):
        return {fit(key, parts[0]): fit(item, parts[1]) for key, item in value.items()}
    if origin is Literal:
        return fit(value, str)  # which of them, who reads it checks
    if hint is bool and type(value).__name__ in ("bool", "bool_"):
        return bool(
            value
        )  # NumPy's has another name by its version, and is not a subclass of Python's bool
    if hint is int and isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if hint is float and isinstance(value, Real) and not isinstance(value, bool):
        return float(value)  # OverflowError, of 10**400
    if hint is str and isinstance(value, os.PathLike):
        return fit(os.fspath(value), str)
    if origin is None and hint not in (int, float) and isinstance(value, hint):
        return value
    raise TypeError


def _fit_any(value: Any, hints: Collection[Any]) -> Any:
    for hint in hints:
        try:
            return fit(value, hint)
        except TypeError:
            continue
    raise TypeError


def _fit_items(value: Any, hint: Any) -> Any:
    """Return a tuple of a collection's items."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise TypeError
    if len(value) > MAX_ITEMS:
        raise OverflowError
    if type(value) is tuple and {*map(type, value)} <= {hint}:
        return value  # of many ids it is enough to see their types
    return tuple(fit(item, hint) for item in value)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return {field.name: type_hints(cls)[field.name] for field in fields(cls)}
