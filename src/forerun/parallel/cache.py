"""Keys and values over several processes: rank 0 decides where blocks lie, the others do the same with their caches."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from forerun.core.batch import Segment
from forerun.model.cache.native import NativeCache
from forerun.model.config import ModelConfig


class CacheBook:
    """Rank 0's caches by number, and what has happened to them that the other ranks do not know yet."""

    def __init__(self) -> None:
        self._unsent: list[tuple[object, ...]] = []
        self._numbers = itertools.count()

    def new_cache(self, config: ModelConfig, *arguments: Any, **named: Any) -> PartCache:
        """Return a cache of this rank's keys and values, which `config` describes; the other ranks will make their own.

        `arguments` and `named` are those of `Model.new_cache`.
        """
        number = next(self._numbers)
        self._unsent.append((number, "new", arguments, named))
        cache = PartCache(number, self._unsent, config, *arguments, **named)
        weakref.finalize(cache, self._unsent.append, (number, "forget")).atexit = False
        return cache

    def take_changes(self) -> list[tuple[object, ...]]:
        """Return the changes since the last call."""
        changes, self._unsent[:] = self._unsent[:], []
        return changes


class PartCache(NativeCache):
    """Rank 0's keys and values. What it does with blocks goes to `unsent`, for the other ranks before the next pass."""

    def __init__(
        self, number: int, unsent: list[tuple[object, ...]], *arguments: Any, **named: Any
    ) -> None:
        self.number, self._unsent = number, unsent
        super().__init__(*arguments, **named)

    def _place(self, slot: int, index: int, block: int) -> None:
        super()._place(slot, index, block)
        self._unsent.append((self.number, "place", slot, index, block))

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        super()._move(slot, rows, start)
        self._unsent.append((self.number, "move", slot, list(rows), start))

    def _copy_block(self, source: int, target: int) -> None:
        super()._copy_block(source, target)
        self._unsent.append((self.number, "copy_block", source, target))


class CacheCopies:
    """Another rank's caches, by rank 0's numbers. `new_cache` makes one."""

    def __init__(self, new_cache: Callable[..., NativeCache]) -> None:
        self._new_cache = new_cache
        self._caches: dict[int, NativeCache] = {}

    def __getitem__(self, number: int) -> NativeCache:
        return self._caches[number]

    def follow(self, changes: Sequence[Sequence[Any]]) -> None:
        """Do what rank 0 has done."""
        for number, what, *how in changes:
            if what == "new":
                arguments, named = how
                self._caches[number] = self._new_cache(*arguments, **named)
            elif what == "forget":
                del self._caches[number]
            else:
                getattr(self._caches[number].native, what)(*how)


def packed(segments: Sequence[Segment]) -> list[tuple[object, ...]]:
    """Write the segments of a pass as an order."""
    return [(s.slot, s.base, s.tokens, s.parents, s.first, s.stop) for s in segments]


def unpacked(rows: Sequence[Sequence[Any]]) -> list[Segment]:
    """Read the segments of an order."""
    return [
        Segment(slot, base, tuple(tokens), parents and tuple(parents), first, stop)
        for slot, base, tokens, parents, first, stop in rows
    ]
