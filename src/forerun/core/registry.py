"""A folder is a list: every module of a package is a plug-in whose name is the file's name.

Adding a drafter, an architecture, a command is adding one file or folder; deleting it removes the plug-in. The
laboratory adds those of `forerun.lab.<kind>`, where it is installed. Other distributions add plug-ins through the
entry-point group `forerun.<kind>`, such as `forerun.drafters`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from forerun.core.errors import ConfigError, unknown
from forerun.core.paths import expanded

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


_ROOMS = {"commands": "cli.commands"}
"""Where the modules of a kind lie, if not in the package of its name."""


def names(kind: str) -> list[str]:
    """List the plug-ins of a kind, e.g. `model.arch`; modules with a leading _ and `base` are none."""
    return sorted({*shipped(kind), *_entry_points(kind)})


def load(kind: str, name: str) -> ModuleType:
    """Import the plug-in `name` of `kind`. Raises ConfigError with the closest name if there is none."""
    name = name.replace("-", "_")
    if (module_name := shipped(kind).get(name)) is not None:
        return importlib.import_module(module_name)
    if (entry := _entry_points(kind).get(name)) is None:
        raise ConfigError(unknown(kind.rsplit(".")[-1].removesuffix("s"), name, names(kind)))
    module = _imported(entry.value, entry.load)
    if not isinstance(module, ModuleType):
        raise ConfigError(
            f"the entry point '{name}' of forerun.{kind} must name a module, but '{entry.value}' is none"
        )
    return module


@cache
def shipped(kind: str) -> Mapping[str, str]:
    """Return the full names of the modules of forerun and its laboratory, by plug-in."""
    modules: dict[str, str] = {}
    for package in (f"forerun.{_ROOMS.get(kind, kind)}", f"forerun.lab.{kind}"):
        try:
            path = importlib.import_module(package).__path__
        except ModuleNotFoundError as error:
            if error.name is None or not package.startswith(error.name):
                raise
            continue
        modules |= {
            module.name: f"{package}.{module.name}" for module in pkgutil.iter_modules(path)
        }
    return {name: module for name, module in modules.items() if name[0] != "_" and name != "base"}


def origin(kind: str, name: str) -> str:
    """Return which distribution a plug-in comes from."""
    entry = None if name in shipped(kind) else _entry_points(kind).get(name)
    return "forerun" if entry is None or entry.dist is None else entry.dist.name


def load_file(name: str) -> ModuleType:
    """Return the module of a Python file, imported once for each version of it. Raises ConfigError."""
    path = expanded(name).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file '{name}': give the path of a Python file")
    from hashlib import sha256  # which takes 8 ms to import

    version = sha256(f"{path} {path.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    module_name = f"_forerun_file_{path.stem}_{version}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        _imported(name, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    except ConfigError:
        del sys.modules[module_name]
        raise
    return module


def _imported(name: str, run: Callable[[], object]) -> object:
    """Run other people's code. Raises ConfigError whatever it raises."""
    try:
        return run()
    except Exception as error:
        raise ConfigError(
            f"'{name}' cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    return _scan(f"forerun.{kind}", tuple(sys.path))


@cache
def _scan(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Reading what all distributions offer takes 10 ms."""
    from importlib.metadata import entry_points  # `forerun --help` needs none of it

    return {entry.name: entry for entry in entry_points(group=group)}
