"""Names of other engines that are not here: an error that names the nearest, or says what there is instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import PathFinder

from forerun.core.errors import hint_for


def message(owner: str, name: str, known: Iterable[str], instead: Mapping[str, str]) -> str:
    """Say that `owner` has no such name.

    >>> message("Llama", "tokenise", ["tokenize"], {})
    "Llama has no 'tokenise' here: did you mean 'tokenize'?"
    """
    why = f": {instead[name]}" if name in instead else hint_for(name, sorted(known))
    return f"{owner} has no '{name}' here{why}"


def of_module(
    module: str, known: Iterable[str], instead: Mapping[str, str]
) -> Callable[[str], object]:
    """Make the `__getattr__` of a module. It raises ImportError: of another one, `from` would not show the words."""
    names = [*known]

    def missing(name: str) -> object:
        if name.startswith("__") or _is_submodule(module, name):  # which `from` then imports
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        raise ImportError(message(module, name, names, instead), name=module)

    return missing


def _is_submodule(module: str, name: str) -> bool:
    path = getattr(sys.modules[module], "__path__", None)
    return path is not None and PathFinder.find_spec(f"{module}.{name}", path) is not None
