"""Published sets of prompts that are fetched by name, from their authors' repositories, and checked."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forerun.core import files
from forerun.core.errors import ConfigError
from forerun.hub.names import cache_root

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
    ),
}
"""By name. Spec-Bench (Xia et al., arXiv 2401.07851): 480 prompts of 13 kinds."""


def file_of(name: str, known: Mapping[str, PublishedSet] = PUBLISHED) -> Path:
    """The file of a published set, fetched if it is not in the cache. Raises ConfigError, with what to do instead."""
    found, path = known[name], cache_root() / "tasks" / f"{name}.jsonl"
    if path.is_file() and _digest(path.read_bytes()) == found.sha256:
        return path
    by_hand = f"fetch {found.url} by other means, then give --task FILE.jsonl"
    try:
        with urllib.request.urlopen(found.url, timeout=TIMEOUT_S) as answer:
            data = answer.read()
    except (OSError, urllib.error.URLError) as error:
        why = getattr(error, "reason", error)
        raise ConfigError(f"{name} could not be fetched ({why}): {by_hand}") from error
    if _digest(data) != found.sha256:
        raise ConfigError(f"{name} is not what was published: its checksum differs; {by_hand}")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, data)
    return path


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
