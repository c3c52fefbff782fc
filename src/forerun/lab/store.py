"""Results by key in a JSONL file that grows line by line: an interrupted run goes on from it.

The first line says what the results depend on: `{"origin": {...}}`. Each further line is one result,
`{"key": ..., ...}`, written at once, so that an interruption leaves whole lines and at most one torn
one, which is dropped. Of a key that was written twice the later result counts. A file of another
origin is refused, never mixed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from forerun.core.errors import ConfigError
from forerun.system.files import make_folder, open_private, read_text

NOT_COMPARED = ("date",)
"""What may differ between the origins of one run."""

HEADER = '{"origin": '

Result = Mapping[str, object]


class Store:
    """The results of one run. Without a path they are kept in memory only."""

    def __init__(self, origin: Result, path: Path | None = None) -> None:
        """Read the results in the file, if it exists. Raises ConfigError if it cannot be used or is another run's."""
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
            _append(self.path, {"key": key, **result})

    def _open(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        complete, torn = _complete_lines(text)
        if not complete and HEADER.startswith(torn[: len(HEADER)]):
            make_folder(path.parent)
            _write(path, "")
            _append(path, {"origin": self.origin})
            return
        origin, self.results = _parse(path, complete)
        differing = [
            f"{name} {origin.get(name)!r} there, {value!r} here"
            for name, value in self.origin.items()
            if name not in NOT_COMPARED and origin.get(name) != value
        ]
        if differing:
            raise ConfigError(
                f"{path} holds another run's results ({'; '.join(differing)}): choose another file"
            )
        if torn:
            _write(path, complete)


def read(path: Path) -> tuple[Result, dict[str, Result]]:
    """Read the origin and the results of a file. Raises ConfigError naming what cannot be read."""
    return _parse(path, _complete_lines(read_text(path))[0])


def _complete_lines(text: str) -> tuple[str, str]:
    """The lines that were written to their end, and what an interruption left of the last one."""
    end = text.rfind("\n") + 1
    return text[:end], text[end:]


def _parse(path: Path, text: str) -> tuple[Result, dict[str, Result]]:
    rows = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} line {number} is not JSON: {error}") from error
        if not isinstance(rows[-1], dict) or ("key" if rows[1:] else "origin") not in rows[-1]:
            raise ConfigError(f"{path} line {number} is not a result: {line[:40]!r}")
    if not rows or not isinstance(rows[0]["origin"], dict):
        raise ConfigError(f"{path} is not a file of results: its first line has no 'origin'")
    return rows[0]["origin"], {str(row.pop("key")): row for row in rows[1:]}


def _append(path: Path, row: Result) -> None:
    with open_private(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def _write(path: Path, text: str) -> None:
    with open_private(path, "w") as file:
        file.write(text)
