"""A drafter in words: its summary, its options and what other engines call them, all read from its module."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from forerun.core import options, registry
from forerun.core.errors import ConfigError
from forerun.drafters._find import find, is_file
from forerun.drafters._spec import METHODS, OPTION_ALIASES


@dataclass(frozen=True, slots=True)
class DrafterOption:
    """One option; `default` is None if it must be given, `aliases` are other engines' names of it."""

    name: str
    type: str
    default: str | None
    help: str
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrafterDoc:
    """One drafter; `origin` is the distribution it comes from, or `file`; `aliases` are other engines' names of it."""

    name: str
    summary: str
    origin: str
    aliases: tuple[str, ...]
    options: tuple[DrafterOption, ...]


def describe(name: str) -> DrafterDoc:
    """By name or path. A drafter of another package that cannot be loaded says so in its summary.

    Raises ConfigError for an unknown name and for a file that holds no drafter.
    """
    if is_file(name):
        module, origin = find(name), "file"
    else:
        name = METHODS.get(name, name).replace("-", "_")
        origin = registry.origin("drafters", name)
        try:
            module = find(name)
        except ConfigError as error:
            if origin == "forerun":
                raise
            return DrafterDoc(name, f"cannot be loaded: {error}", origin, (), ())
    summary = (inspect.getdoc(module) or "").partition("\n")[0]
    found = [
        DrafterOption(o.name, o.type, o.default, " ".join(o.help.split()), _aliases(o.name))
        for o in options.describe(module.Options)
    ]
    aliases = tuple(alias for alias, method in METHODS.items() if method == name)
    return DrafterDoc(name, summary, origin, aliases, tuple(found))


def _aliases(option: str) -> tuple[str, ...]:
    return tuple(alias for alias, name in OPTION_ALIASES.items() if name == option)
