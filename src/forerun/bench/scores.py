"""Every setting autotune has scored, one line of JSON each: an interrupted search goes on from here.

A line belongs to a model, a machine and a set of prompts; lines of others are passed over. What is
kept are the figures, not the score: the score follows from them and the pass times of the day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from forerun.engine.figures import DrafterFigures

Key = Mapping[str, str]


class ScoreLog:
    """A file that grows line by line; without a path it is kept in memory only."""

    def __init__(self, key: Key, path: Path | None = None, *, fresh: bool = False) -> None:
        """`key` says of what the scores are. `fresh` passes over what the file holds already."""
        self._key = dict(key)
        self._path = path
        self._known: dict[str, DrafterFigures] = {}
        if path is not None and path.exists() and not fresh:
            self._read(path)

    def find(self, drafter: str) -> DrafterFigures | None:
        """The latest figures of a setting."""
        return self._known.get(drafter)

    def add(self, figures: DrafterFigures, score: float) -> None:
        """Note a setting. One write a line, so that an interruption leaves whole lines."""
        self._known[figures.drafter] = figures
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({**self._key, "score": round(score, 4), **asdict(figures)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _read(self, path: Path) -> None:
        """A line that cannot be read, such as one cut short, is as good as none."""
        text = path.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        for line in text.splitlines():
            try:
                row = json.loads(line)
                if all(row.get(name) == value for name, value in self._key.items()):
                    figures = DrafterFigures.from_json(row)
                    self._known[figures.drafter] = figures
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
