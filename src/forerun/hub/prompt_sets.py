"""Prompts as files: JSON objects with `id, category, turns`, or plain text, one a line.

`turns` is a list of user messages; `prompt` (text) is read as a single turn. A small set of our own
ships with the package; published ones are fetched by their names from their authors' repositories, and checked.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from forerun.core.errors import ConfigError, check_least
from forerun.core.types import TaskPrompt
from forerun.hub.names import cache_root
from forerun.system import files
from forerun.system.files import read_text

BUILTIN = "builtin"
TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """A file of prompts at a fixed commit."""

    url: str
    sha256: str


PUBLISHED: Mapping[str, PublishedSet] = {
    "spec_bench": PublishedSet(
        "https://raw.githubusercontent.com/hemingkx/Spec-Bench/"
        "fd2c1cd7d2201ef71db4c5f4e455008f017967bf/data/spec_bench/question.jsonl",
        "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
    )
}
"""By name. Spec-Bench (Xia et al., arXiv 2401.07851): 480 prompts of 13 kinds."""


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
    return TaskPrompt(str(row.get("id", row.get("question_id", number))), category, tuple(turns))


def file_of(name: str, known: Mapping[str, PublishedSet] = PUBLISHED) -> Path:
    """Return a published set's file, fetched if it is not in the cache. Raises ConfigError with what to do instead."""
    source, path = known[name], cache_root() / "tasks" / f"{name}.jsonl"
    if path.is_file() and _digest(path.read_bytes()) == source.sha256:
        return path
    by_hand = f"fetch {source.url} by other means, then give --task FILE.jsonl"
    try:
        with urllib.request.urlopen(source.url, timeout=TIMEOUT_S) as answer:
            data = answer.read()
    except (OSError, urllib.error.URLError) as error:
        why = getattr(error, "reason", error)
        raise ConfigError(f"{name} could not be fetched ({why}): {by_hand}") from error
    if _digest(data) != source.sha256:
        raise ConfigError(f"{name} is not what was published: its checksum differs; {by_hand}")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, data, mode=files.PUBLIC)
    return path


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
