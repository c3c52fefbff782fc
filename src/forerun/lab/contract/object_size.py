"""How many bytes an object holds, with everything that can be reached from it."""

from __future__ import annotations

import inspect
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType

import numpy as np

_LEAVES = (str, bytes, int, float, array, np.ndarray, FunctionType, Iterator)


def object_nbytes(*roots: object, without: Iterable[object] = ()) -> int:
    """Return the bytes of everything reachable from `roots`, each object once, by `sys.getsizeof`.

    Models, caches and all that say their own size by `nbytes()` count as that. Left out: `without`, and what only
    they reach.
    """
    seen = {id(item) for item in without}
    total, stack = 0, list(roots)
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, ModuleType | type):
            continue
        seen.add(id(item))
        if _says_its_size(item):
            total += item.nbytes()  # type: ignore[attr-defined]
            continue
        total += sys.getsizeof(item)
        if not isinstance(item, _LEAVES):
            stack.extend(_parts(item))
    return total


def _says_its_size(item: object) -> bool:
    method = getattr(type(item), "nbytes", None)
    if not inspect.isroutine(method) or isinstance(item, np.ndarray):
        return False
    try:
        return len(inspect.signature(method).parameters) == 1
    except ValueError:  # a native function without a signature
        return False


def _parts(item: object) -> list[object]:
    if isinstance(item, Mapping):
        return [*item.keys(), *item.values()]
    if isinstance(item, Iterable):
        return list(item)
    if hasattr(item, "__dict__"):
        return [*vars(item).values()]
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    return [getattr(item, name) for name in slots if hasattr(item, name)]
