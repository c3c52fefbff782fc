"""The file in which `recycling` stores its live table, one a model.

What was learned since the last write is added to the file under a lock, and the file replaced: processes that run at
once lose nothing of each other's. Of a context that two have learned, the one written later counts. Beyond the table's
size those go first that were learned longest ago.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.drafting.learned import LearnedStore, origin_of, path_of

if TYPE_CHECKING:
    from forerun._native import LiveTable


class PersistentTable:
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
        self._file = LearnedStore(self.path, origin_of(model, vocabulary))
        self._live, self._new_table = live, new_table
        with self._file.warned("used"):
            live.absorb(self._file.read())
        self._saved_age = live.age

    def save_if_due(self) -> None:
        """Save what is new, if some minutes have passed."""
        if self._file.is_due:
            self.save()

    def save(self) -> None:
        """Add to the file what was learned since."""
        age = self._live.age
        if age == self._saved_age:
            return
        with self._file.warned("written"), self._file.locked():
            merged = self._new_table()
            with suppress(OSError, ValueError):
                merged.absorb(self._file.read())
            # Ages begin anew when their numbers run out.
            merged.absorb(self._live.entries(self._saved_age if self._saved_age < age else 0))
            self._file.write(merged.entries())
            self._saved_age = age
