"""Tensors that are read when they are asked for: a network's in fp32 would take eight times what its kernels keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Self

from forerun.core.arrays import Floats


class Deferred(Mapping[str, Floats]):
    """Reads a tensor anew each time."""

    def __init__(self, readers: Mapping[str, Callable[[], Floats]]) -> None:
        self._readers = readers

    @classmethod
    def of(cls, tensors: Mapping[str, Floats]) -> Self:
        """Return the same tensors, to be renamed or changed unread."""
        return cls({name: partial(tensors.__getitem__, name) for name in tensors})

    def renamed(self, rename: Callable[[str], str]) -> Self:
        """Return the tensors by other names."""
        return type(self)({rename(name): read for name, read in self._readers.items()})

    def changed(self, names: Callable[[str], bool], change: Callable[[Floats], Floats]) -> Self:
        """Return the tensors with those that `names` picks as `change` makes them."""

        def reader(read: Callable[[], Floats]) -> Callable[[], Floats]:
            return lambda: change(read())

        return type(self)(
            {name: reader(read) if names(name) else read for name, read in self._readers.items()}
        )

    def __getitem__(self, name: str) -> Floats:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)
