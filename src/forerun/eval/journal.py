"""Results by key in a file that grows line by line: an interrupted evaluation goes on from it.

The first line says what the results depend on; a file of another run is refused, never mixed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from forerun.core.errors import ConfigError

NOT_COMPARED = ("date",)
"""What may differ when a run goes on."""

Result = Mapping[str, object]


class Journal:
    """Results of one evaluation. Without a path they are kept in memory only."""

    def __init__(self, origin: Mapping[str, object], path: Path | None = None) -> None:
        """Take up what the file holds. Raises ConfigError if it cannot be read or is another run's."""
        self.origin = origin
        self.path = path
        self.results: dict[str, Result] = {}
        if path is None:
            return
        try:
            self._open(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot use {path}: {error}") from error

    def add(self, key: str, result: Result) -> None:
        """Note a result, in one write."""
        self.results[key] = result
        if self.path is not None:
            self._append(self.path, {"key": key, **result})

    def _open(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        if torn:  # a write that was cut off
            path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
        lines = whole.split("\n") if whole else []
        if not lines:
            self._append(path, {"origin": self.origin})
            return
        rows = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
        found = rows[0].get("origin")
        if not isinstance(found, dict):
            raise ConfigError(f"{path} is not a file of results: its first line has no 'origin'")
        self._check_same(path, found)
        self.results = {
            str(row["key"]): {name: value for name, value in row.items() if name != "key"}
            for row in rows[1:]
            if "key" in row
        }

    def _check_same(self, path: Path, found: Mapping[str, object]) -> None:
        differing = [
            f"{name} {found.get(name)!r} there, {value!r} here"
            for name, value in self.origin.items()
            if name not in NOT_COMPARED and found.get(name) != value
        ]
        if differing:
            raise ConfigError(
                f"{path} holds another run's results ({'; '.join(differing)}): choose another file"
            )

    def _append(self, path: Path, row: Result) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _parse(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{path} line {number} is no result: {line[:40]!r}")
    return row
