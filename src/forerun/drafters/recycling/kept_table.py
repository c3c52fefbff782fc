"""The file in which `recycling` keeps its live table, one a model.

What was learned since the last write is added to the file under a lock, and the file replaced: processes that run at
once lose nothing of each other's. Of a context that two have learned, the one written later counts. Beyond the table's
size those go first that were learned longest ago.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.drafting.learned import KeptFile, origin_of, path_of

if TYPE_CHECKING:
    from forerun._native import LiveTable


class KeptTable:
    """Reads and writes the file of one live table."""

    def __init__(
        self,
        model: Path,
        vocabulary: str,
        live: LiveTable,
        new_table: Callable[[], LiveTable],
        folder: Path | None = None,
    ) -> None:
        """Read the file, in `folder` or in the cache, into `live`; `new_table` makes an empty one of its size."""
        self.path = path_of(model, folder)
        self._file = KeptFile(self.path, origin_of(model, vocabulary))
        self._live, self._new_table = live, new_table
        with self._file.warned("used"):
            live.absorb(self._file.read())
        self._kept_age = live.age

    def keep_in_time(self) -> None:
        """Keep what is new, every few minutes."""
        if self._file.is_time:
            self.keep()

    def keep(self) -> None:
        """Add to the file what was learned since."""
        age = self._live.age
        if age == self._kept_age:
            return
        with self._file.warned("written"), self._file.locked():
            merged = self._new_table()
            with suppress(OSError, ValueError):
                merged.absorb(self._file.read())
            # Ages begin anew when their numbers run out.
            merged.absorb(self._live.entries(self._kept_age if self._kept_age < age else 0))
            self._file.write(merged.entries())
            self._kept_age = age
