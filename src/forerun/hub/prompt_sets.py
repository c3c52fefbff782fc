"""Prompts as files: JSON objects with `id, category, turns, reference`, or plain text, one a line.

`turns` is a list of user messages; `prompt` (text) is read as a single turn. A small set of our own
ships with the package; published ones are fetched by their names (`published.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from forerun.core.errors import ConfigError, check_least
from forerun.core.textfile import read_text
from forerun.core.types import TaskPrompt
from forerun.hub.published import PUBLISHED, file_of

BUILTIN = "builtin"


def read(path: str | Path = BUILTIN, limit: int | None = None) -> list[TaskPrompt]:
    """Read a prompt file, the built-in prompts or a published set. Raises ConfigError naming the file and the line."""
    name = str(path)
    check_least("limit", limit, 1)
    if name in PUBLISHED and not Path(name).exists():
        path = file_of(name)
        name = str(path)
    if name == BUILTIN:
        text = resources.files("forerun.hub").joinpath("builtin.jsonl").read_text("utf-8")
    else:
        text = read_text(path)
    is_json = name == BUILTIN or name.endswith(".jsonl")
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()][:limit]
    if not lines:
        raise ConfigError(f"{name} holds no prompts")
    if not is_json:
        return [TaskPrompt(str(i), "text", (line,)) for i, line in lines]
    return [_parse(line, name, i) for i, line in lines]


def _parse(line: str, name: str, number: int) -> TaskPrompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} line {number} is not JSON: {error}") from error
    turns = row.get("turns", row.get("prompt")) if isinstance(row, Mapping) else None
    turns = [turns] if isinstance(turns, str) else turns
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise ConfigError(f"{name} line {number} needs 'turns', a list of texts, or 'prompt'")
    category = str(row.get("category", "all"))
    return TaskPrompt(
        str(row.get("id", row.get("question_id", number))),
        category,
        tuple(turns),
        row.get("reference"),
    )
