"""Fields of a request that are left out: collected for a header of the answer, and noted once on the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache

from forerun.compat.request_fields import HINTS, NAMES, RENAMED
from forerun.core.errors import RequestError, short_repr, unknown

_log = logging.getLogger("forerun")

CLOSE_MATCH = 0.85
"""How alike (`difflib`) a name is to the one that was meant: `temprature`, not `client_metadata`."""
LONGEST_NAME = 64
"""Letters of a name that is compared."""
MAX_COMPARED = 32
"""Unknown names of a request that are compared with all that are known."""
NOTED = 1024
"""Names that are remembered to be noted once."""
NO_EFFECT = "nothing here follows it"
MAX_HEADER = 1024
"""Letters of the header."""
_BETWEEN = ", "


@dataclass(slots=True)
class IgnoredFields:
    """The fields of one request that were left out."""

    is_strict: bool = False
    """Whether a field that is unknown to everybody is an error."""
    names: dict[str, str] = field(default_factory=dict)
    """With the known name that may have been meant, or nothing; as many as the header has room for."""
    more: set[str] = field(default_factory=set)
    """The others, which are only counted."""
    num_compared: int = 0
    """Unknown names that were compared with all that are known."""
    _room: int = MAX_HEADER - len("and 100000 more")

    def add(self, name: str, meant: str = "") -> bool:
        """Take note of a field; False if there is no room for it."""
        if name in self.names:
            return True
        self._room -= len(_shown(name, meant)) + len(_BETWEEN)
        if self._room < 0:
            self.more.add(name)
            return False
        self.names[name] = meant
        return True

    def header(self) -> str:
        """Write them for a header of the answer.

        >>> IgnoredFields(names={"temprature": "temperature", "user": ""}, more={"x", "y"}).header()
        'temprature (did you mean temperature?), user, and 2 more'
        """
        shown = [_shown(name, meant) for name, meant in self.names.items()]
        return _BETWEEN.join([*shown, *([f"and {len(self.more)} more"] if self.more else [])])


_ignored: ContextVar[IgnoredFields | None] = ContextVar("ignored", default=None)


def _shown(name: str, meant: str) -> str:
    return _bare(name) + (f" (did you mean {meant}?)" if meant else "")


def _bare(name: str) -> str:
    """Write a name so that no header ends within it."""
    return re.sub(r"[^\w.:/+-]", "?", name[:LONGEST_NAME], flags=re.ASCII)


@contextmanager
def collected(*, is_strict: bool) -> Iterator[IgnoredFields]:
    """Collect what is left out of a request that is read within the block."""
    found = IgnoredFields(is_strict)
    token = _ignored.set(found)
    try:
        yield found
    finally:
        _ignored.reset(token)
        if found.more:
            _log.warning("and %d more fields of a request have no effect", len(found.more))


def leave_out(strange: Set[str], known: Collection[str]) -> None:
    """Note fields that are not known here. With strict reading, raises RequestError for one that no server has."""
    found = _ignored.get()
    for name in sorted(strange & HINTS):  # within objects
        note(name, NO_EFFECT)
    strange = strange - HINTS
    if strange and found is not None and found.is_strict:
        raise RequestError(unknown("field", min(strange), known, NAMES), option=min(strange))
    found = IgnoredFields() if found is None else found
    for name in sorted(strange):
        note(name, "it is unknown", _meant_by(name, known, found))


def _meant_by(name: str, known: Collection[str], found: IgnoredFields) -> str:
    """Return the known name that was probably meant, a letter or two off; empty if there is none."""
    if len(name) > LONGEST_NAME or found.num_compared >= MAX_COMPARED:
        return ""
    found.num_compared += 1
    close = get_close_matches(name.lower(), {*known, *RENAMED}, n=1, cutoff=CLOSE_MATCH)
    return close[0] if close else ""


def note(name: str, why: str, meant: str = "") -> None:
    """Collect a field that does nothing, and say so once on the log, and why."""
    found = _ignored.get()
    if found is None or found.add(name, meant):
        say_once(name, why, meant)


@lru_cache(maxsize=NOTED)
def say_once(name: str, why: str, meant: str) -> None:
    """Write it on the log."""
    hint = f"; did you mean {meant}?" if meant else ""
    _log.warning("field %s of a request has no effect: %s%s", short_repr(name), why, hint)
