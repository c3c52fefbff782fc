"""Where the prompts of a store of replies came from, and under which licences: a file beside the store.

One entry for each file of prompts, known by its contents, so that a run that goes on does not write it again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from forerun.core.errors import ConfigError
from forerun.lab.output import writing
from forerun.system import files
from forerun.system.files import read_text

BUILTIN, UNKNOWN = "builtin", "unknown"
OWN = "forerun"
"""The built-in prompts are part of this package."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of prompts."""

    file: str
    sha256: str
    licences: Mapping[str, int]
    """How many of its prompts are under each."""


def path_of(answers: Path) -> Path:
    """Return the file for the sources of a store."""
    return answers.with_suffix(".sources.json")


def of_prompts(prompts: str, licence: str | None) -> Source:
    """Read where prompts come from and their licences; `licence` stands for those of its prompts that name none."""
    if prompts == BUILTIN:
        return Source(BUILTIN, "", {OWN: 1})
    text = read_text(prompts)
    lines = [line for line in text.split("\n") if line.strip()]
    licences = Counter(_licence(line) or licence or UNKNOWN for line in lines)
    return Source(
        Path(prompts).name, hashlib.sha256(text.encode()).hexdigest(), dict(licences.most_common())
    )


def note(answers: Path, source: Source) -> None:
    """Add a source, or replace it if the same file was noted before. Raises ForerunError."""
    known = {each.sha256: each for each in read(answers)} | {source.sha256: source}
    text = json.dumps([asdict(each) for each in known.values()], indent=2) + "\n"
    path = path_of(answers)
    with writing(path):
        files.replace(path, text.encode())


def read(answers: Path) -> list[Source]:
    """Read the sources of a store; none if nothing was noted. Raises ConfigError for a damaged file."""
    path = path_of(answers)
    if not path.exists():
        return []
    try:
        return [Source(**row) for row in json.loads(read_text(path))]
    except (json.JSONDecodeError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): delete it") from error


def _licence(line: str) -> str:
    """Return the licence of one prompt, if its line is JSON with one."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return ""
    if not isinstance(row, Mapping):
        return ""
    return str(row.get("license") or row.get("licence") or "")
