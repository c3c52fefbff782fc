"""Options are frozen dataclasses; this module declares them, writes them as text, reads and describes them.

The command line's `name:key=value,key=value`, JSON and TOML tables, `--help` and the documentation's
tables all come from them. What values mean, and which go together, `__post_init__` checks.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from forerun.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

_UNIONS = (Union, types.UnionType)
_SCALARS: Mapping[object, tuple[str, tuple[type, ...]]] = {
    int: ("a whole number", (int, str)),
    float: ("a number", (int, float, str)),
    str: ("text", (str,)),
    Path: ("a path", (str, Path)),
}
"""What a type is called, and of which types its values may be given."""
_WORDS: Mapping[object, Mapping[str, bool | None]] = {
    types.NoneType: {"none": None},
    bool: {
        **dict.fromkeys(("true", "yes", "on", "1"), True),
        **dict.fromkeys(("false", "no", "off", "0"), False),
    },
}
# A comma ends a value only where the next option begins, so `layers=2,2,1` needs no quotes.
_NEXT_OPTION = re.compile(r",(?=\s*[A-Za-z][\w-]*\s*=)")


@dataclasses.dataclass(frozen=True, slots=True)
class OptionDoc:
    """One option as help and documentation show it; `default` is None if it must be given."""

    name: str
    type: str
    default: str | None
    help: str


def option(
    default: object,
    *flags: str,
    metavar: str = "",
    group: str = "",
    values: Mapping[str, object] | None = None,
    why: str = "",
) -> Any:
    """Declare a field that is an option of the command line: `--field-name`, and further `flags`.

    `metavar` is what help says it takes where its type does not say it; `group` is its heading there. `values` is what
    other engines' values are here, by the further names; `why` says why there are no others.
    """
    metadata = {"flags": flags, "metavar": metavar, "group": group, "values": values, "why": why}
    return dataclasses.field(default=default, metadata=metadata)


def flag_of(name: str) -> str:
    """Write a field's name as a flag of the command line.

    >>> flag_of("max_num_seqs")
    '--max-num-seqs'
    """
    return f"--{name.replace('_', '-')}"


@functools.cache
def flags_of(options: type) -> Mapping[str, tuple[str, ...]]:
    """Return all flags of each field that is declared as an option, its own first."""
    return {
        field.name: (flag_of(field.name), *field.metadata["flags"])
        for field in dataclasses.fields(options)
        if "flags" in field.metadata
    }


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value,key=value` into the name and the options. Raises ConfigError.

    >>> parse("draft_model:model=small.gguf,num_draft=3")
    ('draft_model', {'model': 'small.gguf', 'num_draft': '3'})
    """
    name, _, text = spec.partition(":")
    if not name.strip():
        raise ConfigError(f"'{spec}' names nothing: write name or name:key=value,key=value")
    values: dict[str, str] = {}
    for part in _NEXT_OPTION.split(text) if text.strip() else ():
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"'{part}' in '{spec}' is not an option: write key=value")
        if key in values:
            raise ConfigError(f"option '{key}' is given twice in '{spec}'")
        values[key] = value
    return name.strip(), values


def format_spec(name: str, options: DataclassInstance) -> str:
    """Write the spec that `parse` and `build` read back as these options; defaults are left out."""
    given = [
        f"{field.name}={_to_text(value)}"
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) != _default(field)
    ]
    return f"{name}:{','.join(given)}" if given else name


def build(options: type[Options], values: Mapping[str, object]) -> Options:
    """Make an instance from texts (command line) or typed values (JSON, TOML); `-` in keys is `_`.

    Raises ConfigError that names the option, what it takes and what it got.
    """
    hints = type_hints(options)
    fields = {field.name: field for field in dataclasses.fields(options) if field.init}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise ConfigError(unknown("option", key, fields))
        if name in arguments:
            raise ConfigError(f"option '{name}' is given twice")
        try:
            arguments[name] = _convert(value, hints[name])
        except ValueError:
            allowed = type_name(hints[name])
            message = f"option '{name}' must be {allowed}, got {value!r}"
            raise ConfigError(message, option=name) from None
    missing = [n for n, f in fields.items() if _is_required(f) and n not in arguments]
    if missing:
        raise ConfigError(f"option '{missing[0]}' must be given: {missing[0]}=...")
    return options(**arguments)


def convert(name: str, value: object, hint: object) -> Any:
    """Read the value of an option, which may be a text, as a type. Raises ConfigError."""
    try:
        return _convert(value, hint)
    except ValueError:
        message = f"{name} must be {type_name(hint)}, got {value!r}"
        raise ConfigError(message, option=name) from None


def read_object(name: str, text: str) -> dict[str, Any]:
    """Parse an option's JSON object. Raises ConfigError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a JSON object, got {text}")
    return value


def describe(options: type[DataclassInstance]) -> list[OptionDoc]:
    """List what each option is called, takes, defaults to and means, in the order of the class."""
    hints = type_hints(options)
    helps = docstrings(options)
    return [
        OptionDoc(
            name=field.name,
            type=type_name(hints[field.name]),
            default=None if _is_required(field) else _to_text(_default(field)),
            help=helps.get(field.name, ""),
        )
        for field in dataclasses.fields(options)
        if field.init
    ]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def type_hints(options: type) -> Mapping[str, Any]:
    """Return the types of a class's fields."""
    return typing.get_type_hints(options)


@functools.cache
def docstrings(options: type) -> Mapping[str, str]:
    """Read the strings that follow the attributes, bases first; none where there is no source."""
    helps: dict[str, str] = {}
    for cls in reversed(options.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(cls))
        except (OSError, TypeError):
            continue
        definition = ast.parse(source).body[0]
        assert isinstance(definition, ast.ClassDef)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            match field, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    helps[name] = inspect.cleandoc(text)
    return helps


def _convert(value: object, hint: object) -> object:
    """Convert a value to type `hint`. Raises ValueError if it is none, TypeError for an unknown hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return _convert_to_first(value, arguments)
    if origin is tuple:
        return _convert_to_tuple(value, arguments)
    if (words := _words(hint)) is not None:
        text = _to_text(value).strip()
        if text not in words:
            text = text.lower()
        if text not in words:
            raise ValueError
        return words[text]
    if not isinstance(hint, type) or hint not in _SCALARS:
        raise TypeError(f"options of type {hint} are not supported")
    if isinstance(value, bool) or not isinstance(value, _SCALARS[hint][1]):
        raise ValueError
    return hint(value)


def _words(hint: object) -> Mapping[str, object] | None:
    """List what the texts allowed for a type mean; None for a type with more values than a few."""
    if typing.get_origin(hint) is Literal:
        return {_to_text(choice): choice for choice in typing.get_args(hint)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {_to_text(choice): choice for choice in hint}
    return _WORDS.get(hint)


def _convert_to_first(value: object, hints: tuple[object, ...]) -> object:
    """Convert to the first type that fits; None goes first, or the text `none` would be a text."""
    for hint in sorted(hints, key=lambda hint: hint is not types.NoneType):
        try:
            return _convert(value, hint)
        except ValueError:
            continue
    raise ValueError


def _convert_to_tuple(value: object, hints: tuple[object, ...]) -> tuple[object, ...]:
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, list | tuple):
        raise ValueError
    if hints[-1] is ...:
        hints = hints[:1] * len(value)
    if len(value) != len(hints):
        raise ValueError
    return tuple(_convert(item, hint) for item, hint in zip(value, hints, strict=True))


def type_name(hint: object) -> str:
    """Say in words what values a type allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return " or ".join(type_name(argument) for argument in arguments)
    if origin is tuple:
        return ",".join("..." if item is ... else type_name(item) for item in arguments)
    if hint is bool:
        return "true or false"
    words = _words(hint)
    if words is not None:
        return " or ".join(words)
    return _SCALARS[hint][0] if hint in _SCALARS else str(hint)


def _to_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(_to_text(item) for item in value)
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
