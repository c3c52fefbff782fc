"""What belongs to one process and cannot be pickled."""

from __future__ import annotations

from typing import ClassVar, NoReturn, Self


class OfOneProcess:
    """May be copied within its process; pickling says what to do instead."""

    instead: ClassVar[str]

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} belongs to its process: {self.instead}")
