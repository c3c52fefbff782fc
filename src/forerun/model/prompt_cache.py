"""Give a model's cache its second tier: the folder that the configuration names, and what decides on the bits in it."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache as cached
from pathlib import Path

from forerun.core import sizes
from forerun.core.config import ALL, AUTO, SHARED, EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.paths import expanded
from forerun.model.backends.native import NativeDecoder
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.cache.folder import PromptFolder, default_path
from forerun.model.cache.native import NativeCache
from forerun.model.cache.store import PromptStore
from forerun.model.model import Model
from forerun.system import opened

SHARED_LEAST = 300_000_000
"""Bytes of weights below which instructions are read faster than anybody notices."""
SHARED_DISK = 0.1
"""Share of the disk's free space that shared instructions may take."""

_log = logging.getLogger(__name__)


def folder_of(path: str, limit_nbytes: int) -> PromptFolder:
    """Return the folder of that name; auto, all and shared name forerun's own. Raises ConfigError for a file."""
    folder = default_path() if path in (AUTO, ALL, SHARED) else expanded(path)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"prompt_cache must be a folder, which is made if it is not there, but {folder} is a file",
            option="prompt_cache",
        )
    return PromptFolder(folder, limit_nbytes)


def keep_on_disk(
    cache: KVCache,
    model: Model,
    config: EngineConfig,
    name: str,
    files: Sequence[opened.OpenedFile],
) -> None:
    """Keep a cache's blocks in the folder of a configuration, if it names one that can be used; `name` is for people.

    What is kept holds for the model's `files`, by their size, time of change, beginning and end.
    Raises ConfigError where the folder is a file.
    """
    only_shared = config.prompt_cache == SHARED
    if config.prompt_cache is None or (only_shared and model.nbytes() < SHARED_LEAST):
        return
    folder = folder_of(config.prompt_cache, config.prompt_cache_nbytes)
    if only_shared:
        with suppress(OSError):
            folder = replace(folder, limit_nbytes=min(folder.limit_nbytes, _room(folder.path)))
    if not isinstance(model, NativeDecoder) or not isinstance(cache, NativeCache):
        if not only_shared:
            _log.warning("prompt_cache has no effect: it is for the native kernels, in one process")
        return
    kv = "fp16" if config.kv == AUTO else config.kv
    num_tokens = folder.limit_nbytes // cache.block_nbytes * BLOCK_ROWS
    if num_tokens < cache.max_len and not only_shared:
        limit = sizes.format_size(folder.limit_nbytes)
        _log.warning(
            "a prompt cache of %s holds %d tokens of %s, not a full context of %d",
            *(limit, num_tokens, name, cache.max_len),
        )
    if [opened.OpenedFile.now(path) for path, _ in files] != [*files]:
        _log.warning("prompts are not kept: the model's files have changed since they were read")
        return
    try:
        folder.make()
    except OSError as error:
        _log.warning("prompts are not kept: %s", error)
        return
    identity = {
        "files": [opened.digest(files), *(state[:2] for _, state in files)],
        "rounding": [config.quant, config.head_bits],
        "config": repr(model.config),
        "kv": kv,
        "code": _code_digest(),
    }
    store = PromptStore(folder, identity, {"model": name, "kv": kv})
    cache.keep_on(store, only_shared=only_shared)


def _room(path: Path) -> int:
    """Return what shared instructions may take of a folder's disk. Raises OSError."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    return int(shutil.disk_usage(there).free * SHARED_DISK)


@cached
def _code_digest() -> str:
    """Hash the code that decides on the bits of keys and values: what other code has computed is not used."""
    from forerun import _native

    package = Path(__file__).parents[1]
    sources = [path for part in ("weights", "model") for path in (package / part).rglob("*.py")]
    digest = hashlib.sha256()
    for path in [Path(_native.__file__), *sorted(sources)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
