"""Climbing to a drafter's best options, one option at a time: what `grids` of a drafter's `METHOD` asks for.

A score runs a model, so a search should be short. It asks in the same order each time, and scores are
remembered: a search that was interrupted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, TypeVar

from forerun.core.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

GAIN = 1.005
"""The least gain of a change: costs are measured, with noise."""


def climb(
    options: Options,
    grids: Mapping[str, Sequence[float]],
    score: Callable[[Options], float],
    *,
    grow: bool = False,
) -> Options:
    """Change one option at a time along its grid (ascending) as long as the score rises.

    An option that is not at its default was asked for, and stays. With `grow` the others begin at
    their smallest values, else where they are.
    """
    free = {name: grid for name, grid in grids.items() if is_default(options, name)}
    if grow:
        options = replace(options, **{name: grid[0] for name, grid in free.items()})
    best, highest = options, score(options)
    has_moved = True
    while has_moved:
        has_moved = False
        for name, grid in free.items():
            for step in (1, -1):
                while (near := _neighbour(best, name, grid, step)) is not None:
                    found = score(near)
                    if found < highest * GAIN:
                        break
                    best, highest, has_moved = near, found, True
    return best


def is_default(options: DataclassInstance, name: str) -> bool:
    """True unless the option was given another value."""
    for field in fields(options):
        if field.name == name:
            return field.default is not MISSING and getattr(options, name) == field.default
    raise AttributeError(name)


def _neighbour(options: Options, name: str, grid: Sequence[float], step: int) -> Options | None:
    """The options with the next value of one of them; None at the grid's end, or if they do not go together."""
    value = getattr(options, name)
    further = [v for v in grid if v > value] if step > 0 else [v for v in grid if v < value][::-1]
    if not further:
        return None
    try:
        return replace(options, **{name: further[0]})
    except ConfigError:
        return None
