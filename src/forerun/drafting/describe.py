"""A drafter in words: its summary, its options and what other engines call them, all read from its module."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from forerun.core import options, registry, spellings
from forerun.core.errors import ConfigError
from forerun.core.spellings import METHODS
from forerun.drafting.find import find, is_file


@dataclass(frozen=True, slots=True)
class DrafterDoc:
    """One drafter; `origin` is the distribution it comes from, or `file`; `aliases` are other engines' names of it."""

    name: str
    summary: str
    origin: str
    aliases: tuple[str, ...]
    options: tuple[options.OptionDoc, ...]
    option_aliases: dict[str, tuple[str, ...]]
    """By option; of those that have some."""


def describe(name: str) -> DrafterDoc:
    """By name or path. A drafter of another package that cannot be loaded says so in its summary.

    Raises ConfigError for an unknown name and for a file that holds no drafter.
    """
    if is_file(name):
        module, origin = find(name), "file"
    else:
        name = spellings.method(name) or name.replace("-", "_")
        origin = registry.origin("drafters", name)
        try:
            module = find(name)
        except ConfigError as error:
            if origin == "forerun":
                raise
            return DrafterDoc(name, f"cannot be loaded: {error}", origin, (), (), {})
    summary = (inspect.getdoc(module) or "").partition("\n")[0]
    described = tuple(options.describe(module.Options))
    elsewhere = {option.name: spellings.aliases_of(option.name) for option in described}
    elsewhere = {option: names for option, names in elsewhere.items() if names}
    return DrafterDoc(name, summary, origin, _names_of(name), described, elsewhere)


def _names_of(drafter: str) -> tuple[str, ...]:
    return tuple(alias for alias, name in METHODS.items() if name == drafter)
