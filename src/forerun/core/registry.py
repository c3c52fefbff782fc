"""A folder is a list: every module of a package is a plug-in whose name is the file's name.

Adding a drafter, an architecture, a command is adding one file; deleting the file removes it. Other
distributions can add drafters through the entry-point group `forerun.drafters`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from functools import cache
from types import ModuleType

from forerun.core.errors import ConfigError, unknown


def names(kind: str) -> list[str]:
    """Plug-ins of the package `forerun.<kind>`, e.g. `nn.arch`; modules with a leading _ and `base` are none."""
    package = importlib.import_module(f"forerun.{kind}")
    own = [m.name for m in pkgutil.iter_modules(package.__path__)]
    own = [name for name in own if not name.startswith("_") and name != "base"]
    return sorted({*own, *_entry_points(kind)})


def load(kind: str, name: str) -> ModuleType:
    """Import the plug-in `name` of `kind`. Raises ConfigError with the closest name if there is none."""
    name = name.replace("-", "_")
    if name not in names(kind):
        raise ConfigError(unknown(kind.rsplit(".")[-1].removesuffix("s"), name, names(kind)))
    entry = _entry_points(kind).get(name)
    module = entry.load() if entry else importlib.import_module(f"forerun.{kind}.{name}")
    assert isinstance(module, ModuleType)
    return module


def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return _scan(f"forerun.{kind}", tuple(sys.path))


@cache
def _scan(group: str, path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """Reading what all distributions offer takes 10 ms."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}
