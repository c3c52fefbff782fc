"""Drafters of this folder, of other packages and of the user's files: found, checked to be drafters, described."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from types import ModuleType

from forerun.core import options, registry
from forerun.core.errors import ConfigError
from forerun.drafters.base.contract import Drafter, Method

HELP = "docs/adding-a-drafter.md shows a whole one"


def is_file(name: str) -> bool:
    """Tell a drafter that is named by the path of its file."""
    return name.endswith(".py")


def find(name: str) -> ModuleType:
    """Import a drafter's module, by its name or the path of its file. Raises ConfigError that says what is missing."""
    module = registry.load_file(name) if is_file(name) else registry.load("drafters", name)
    for needed in ("Options", "build"):
        if not hasattr(module, needed):
            raise ConfigError(f"'{name}' is not a drafter: it has no `{needed}`; {HELP}")
    if not dataclasses.is_dataclass(module.Options):
        raise ConfigError(f"`Options` of '{name}' must be a frozen dataclass; {HELP}")
    return module


def method_of(name: str) -> Method:
    """Return the `METHOD` of a drafter's module, or the defaults. Raises ConfigError."""
    method = getattr(find(name), "METHOD", Method())
    if not isinstance(method, Method):
        raise ConfigError(
            f"`METHOD` of '{name}' must be a forerun.drafters.base.contract.Method; {HELP}"
        )
    return method


def checked(drafter: object, name: str) -> Drafter:
    """Check that `build` returned a drafter, and return it. Raises ConfigError."""
    if isinstance(drafter, Drafter):
        return drafter
    raise ConfigError(
        f"'{name}' is not a drafter: its {type(drafter).__name__} does not derive from "
        f"forerun.drafters.base.contract.Drafter; {HELP}"
    )


@dataclass(frozen=True, slots=True)
class DrafterDoc:
    """One drafter; `origin` is the distribution that it comes from, or `file`."""

    name: str
    summary: str
    origin: str
    options: tuple[options.OptionDoc, ...]


def describe(name: str) -> DrafterDoc:
    """Describe a drafter by name or path; for one of another package that cannot be loaded, the summary says why.

    Raises ConfigError for an unknown name and for a file that holds no drafter.
    """
    if is_file(name):
        module, origin = find(name), "file"
    else:
        name = name.replace("-", "_")
        origin = registry.origin("drafters", name)
        try:
            module = find(name)
        except ConfigError as error:
            if origin == "forerun":
                raise
            return DrafterDoc(name, f"cannot be loaded: {error}", origin, ())
    summary = (inspect.getdoc(module) or "").partition("\n")[0]
    return DrafterDoc(name, summary, origin, tuple(options.describe(module.Options)))
