"""Drafters of this folder, of other packages and of the user's files, checked to be drafters."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from forerun.core import registry
from forerun.core.errors import ConfigError
from forerun.drafting.base import Drafter

HELP = "docs/adding-a-drafter.md shows a whole one"
MEMBERS = ("features", "draws", "begin", "propose", "observe", "end", "nbytes")


def is_file(name: str) -> bool:
    """True for a drafter that is named by the path of its file."""
    return name.endswith(".py")


def find(name: str) -> ModuleType:
    """A drafter's module, by its name or the path of its file. Raises ConfigError that says what is missing."""
    module = registry.load_file(name) if is_file(name) else registry.load("drafters", name)
    for needed in ("Options", "build"):
        if not hasattr(module, needed):
            raise ConfigError(f"'{name}' is no drafter: it has no `{needed}`; {HELP}")
    if not dataclasses.is_dataclass(module.Options):
        raise ConfigError(f"`Options` of '{name}' must be a frozen dataclass; {HELP}")
    return module


def checked(drafter: object, name: str) -> Drafter:
    """The drafter that `build` returned. Raises ConfigError if it is none."""
    if missing := [member for member in MEMBERS if not hasattr(drafter, member)]:
        raise ConfigError(
            f"'{name}' is no drafter: its {type(drafter).__name__} has no {', '.join(missing)}; {HELP}"
        )
    return drafter  # type: ignore[return-value]
