"""Describe a drafter: its summary and its options, both read from its module."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from forerun.core import options, registry
from forerun.core.errors import ConfigError
from forerun.drafting.find import find, is_file


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
