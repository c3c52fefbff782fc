"""Models of the Hugging Face Hub: `org/repo`, `org/repo:Q4_K_M` or `org/repo/file.gguf`.

The hub's own client downloads, resumes and caches. What is in its cache is used without asking the hub.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.core.errors import LoadError
from forerun.core.paths import expanded
from forerun.weights.gguf_parts import part_paths
from forerun.weights.gguf_roles import is_model, models_among

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

HOW_TO_REMOVE = (
    "is kept by the Hugging Face Hub's own client, for other programs as well: "
    "hf cache ls lists what it has, hf cache rm deletes it"
)
_TIMEOUT_S = 20.0
_WEIGHTS = (".gguf", ".safetensors")
_TORCH_FILE = "pytorch_model.bin"
"""Fetched where there is nothing else: heads that draft are published as one."""
_ADDRESS = re.compile(r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/")
_PAGE = re.compile(r"/(?:resolve|blob|tree|raw)/main(/[^?]*|)(?:\?.*)?$")
"""What stands in a page's address before the name of a file."""
_OF_PARTS = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, and which of its GGUFs is meant: by file, by quantization, or none of them."""

    repo: str
    file: str | None = None
    quantization: str | None = None

    @classmethod
    def parse(cls, name: str) -> HubName | None:
        """Return the parts of a name, or of a page's address; None if it is none, but a path or a plain name."""
        name = _ADDRESS.sub("", name, count=1)
        name = _PAGE.sub(r"\1", name) if name.count("/") > 2 else name
        if name.startswith((".", "/", "~")):
            return None
        rest, _, quantization = name.partition(":")
        org, _, rest = rest.partition("/")
        project, _, file = rest.partition("/")
        if not project or (file or project).endswith(".gguf") != bool(file):
            return None
        quantization = "" if quantization == "latest" else quantization
        return cls(f"{org}/{project}", file or None, quantization or None)

    def patterns(self) -> list[str]:
        """Return the files of the repository that belong to it, as shell patterns."""
        if self.file:
            return [self.file]
        if self.quantization:
            return [f"*{self.quantization}.gguf", f"*{self.quantization}-*-of-*.gguf"]
        return ["*.json", "*.safetensors", "*.jinja"]


def has_repo(name: HubName) -> bool:
    """Tell whether the client's cache has anything of a repository, without the client, which is slow to import."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    cache = next(filter(None, map(os.environ.get, names)), os.path.join(home, "hub"))
    return (expanded(cache) / f"models--{name.repo.replace('/', '--')}").is_dir()


def cached(name: HubName) -> Path | None:
    """Return the file or folder if an earlier download left it here."""
    # Imported late: it takes a while, and most runs do without it.
    import huggingface_hub

    if not _has_cache():
        return None
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                name.repo, allow_patterns=[*name.patterns(), _TORCH_FILE], local_files_only=True
            )
        )
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
        path = folder / (_choose(name, _without_others(folder, names)) or "")
        if not all(part.exists() for part in _weight_files(path)):
            return None
    except (OSError, ValueError, LoadError):
        return None
    return path if path.exists() else None


def _has_cache() -> bool:
    """Tell whether the client's cache has a place: without a home its path begins with `~`, a folder's name here."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return not HF_HUB_CACHE.startswith("~")


def _without_others(folder: Path, names: list[str]) -> list[str]:
    """Leave out, of several GGUFs, those that are no models by their headers."""
    ggufs = [name for name in names if name.endswith(".gguf")]
    others = {name for name in ggufs if len(ggufs) > 1 and not is_model(folder / name)}
    return [name for name in names if name not in others]


def _weight_files(path: Path) -> list[Path]:
    """Return the files that a GGUF or a folder has when its download is complete, of a folder one at least.

    Older clients return the folder of an interrupted download like any other. Raises OSError or ValueError for a
    damaged index.
    """
    if not path.is_dir():
        return part_paths(path)
    index = path / "model.safetensors.index.json"
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        return [path / shard for shard in set(shards.values())]
    found = sorted(path.glob("*.safetensors")) or sorted(path.glob(_TORCH_FILE))
    return found or [path / "model.safetensors"]


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository with weights in the client's cache: all its files and revisions."""

    name: str
    nbytes: int
    path: Path


def models() -> list[HubModel]:
    """Return the models in the client's cache, by name."""
    import huggingface_hub

    if not _has_cache():
        return []
    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except (OSError, huggingface_hub.errors.CacheNotFound):
        return []
    cached_models = [
        HubModel(repo.repo_id, repo.size_on_disk, repo.repo_path)
        for repo in repos
        if repo.repo_type == "model"
        and any(
            file.file_name.endswith(_WEIGHTS)
            for revision in repo.revisions
            for file in revision.files
        )
    ]
    return sorted(cached_models, key=lambda model: model.name)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; `digest` is what the client's cache calls its content."""

    name: str
    digest: str
    nbytes: int


def files_of(name: HubName) -> list[HubFile]:
    """Return the files that `download` fetches, the largest first. Raises LoadError."""
    with _asked(name):
        siblings = _siblings(name, has_sizes=True)
        file, patterns = _wanted(name, siblings)
    if file is not None:
        patterns = [part.as_posix() for part in part_paths(Path(file))]
    found = [
        HubFile(each.rfilename, each.lfs.sha256 if each.lfs else each.blob_id or "", each.size or 0)
        for each in siblings
        if any(fnmatch(each.rfilename, pattern) for pattern in patterns)
    ]
    return sorted(found, key=lambda one: -one.nbytes)


def blob(name: HubName, file: HubFile) -> int:
    """Return how many bytes of a file are in the client's cache; it may be on its way."""
    from huggingface_hub.constants import HF_HUB_CACHE

    blobs = Path(HF_HUB_CACHE) / f"models--{name.repo.replace('/', '--')}" / "blobs"
    sizes = [0]
    for path in blobs.glob(f"{file.digest}*") if file.digest else ():
        with suppress(OSError):  # it has just been given its last name
            sizes.append(path.stat().st_size)
    return max(sizes)


def download(name: HubName) -> Path:
    """Return the file or folder, from the hub. Raises LoadError."""
    import huggingface_hub

    if not _has_cache():
        raise LoadError(f"{name.repo} cannot be kept: there is no home folder; set HF_HOME to one")
    with _asked(name):
        # Asked first because, unlike the downloads, it fails at once when the hub is out of reach.
        file, patterns = _wanted(name, _siblings(name))
        if file is not None:
            parts = [
                Path(huggingface_hub.hf_hub_download(name.repo, part.as_posix()))
                for part in part_paths(Path(file))
            ]
            return parts[0]
        return Path(huggingface_hub.snapshot_download(name.repo, allow_patterns=patterns))


@contextmanager
def _asked(name: HubName) -> Iterator[None]:
    """Say in one line why the hub does not give it: LoadError."""
    try:
        yield
    except LoadError:
        raise
    # Which errors the client raises depends on the HTTP library it uses.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if _is_cut_off(error):
            raise LoadError(
                f"no network: the Hugging Face Hub cannot be asked for '{name.repo}' ({reason}); forerun models lists "
                "what is here"
            ) from error
        raise LoadError(f"the Hugging Face Hub does not give '{name.repo}': {reason}") from error


def _is_cut_off(error: BaseException | None) -> bool:
    """Tell whether an error of the client comes from a connection that was not made, or was lost."""
    import socket  # 3 ms, which `--help` need not take

    while error is not None:
        if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
            return True
        if isinstance(error, OSError) and error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return True
        error = error.__cause__ or error.__context__
    return False


def _siblings(name: HubName, *, has_sizes: bool = False) -> list[RepoSibling]:
    import huggingface_hub

    info = huggingface_hub.model_info(name.repo, timeout=_TIMEOUT_S, files_metadata=has_sizes)
    return info.siblings or []


def _wanted(name: HubName, siblings: list[RepoSibling]) -> tuple[str | None, list[str]]:
    """Return the GGUF that is meant, None for a folder, and the folder's files as patterns. Raises LoadError."""
    files = [sibling.rfilename for sibling in siblings]
    file, patterns = _choose(name, files), name.patterns()
    if not any(each.endswith(_WEIGHTS) for each in files):
        patterns = [*patterns, _TORCH_FILE]
    return file, patterns


def _choose(name: HubName, files: list[str]) -> str | None:
    """Return the GGUF that is meant, None for the whole folder. Raises LoadError with what there is.

    A quantization means a model of it, not a file that goes with one.
    """
    if name.file in files:
        return name.file
    ggufs = models_among(files)
    if name.quantization is not None:
        ending = f"{name.quantization}.gguf".lower()
        for file in ggufs:
            first_part = _OF_PARTS.sub(".gguf", file.lower())  # of a split file the first part
            if first_part.endswith((f"-{ending}", f".{ending}", f"/{ending}")):
                return file
    elif name.file is None and "config.json" in files:
        return None
    wanted = name.file or name.quantization or "safetensors model"
    raise LoadError(
        f"{name.repo} has no {wanted}, but {', '.join(ggufs) or 'no GGUF either'}: name a GGUF as "
        f"{name.repo}/<file> or {name.repo}:<quantization>"
    )
