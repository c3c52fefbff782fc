"""What a GGUF file is for: a model, or what lies beside one. Its name tells first, then its header."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path

from forerun.core.errors import LoadError

_BESIDE = re.compile(r"(?:^|[-_./])(?:mmproj|imatrix)(?:[-_./]|$)", re.IGNORECASE)
"""Names of projectors of pictures and sounds, and of counts for rounding."""
_DRAFTS = re.compile(r"(?:^|/)(?:mtp|eagle3?|dflash|dspark|medusa)[-_.]", re.IGNORECASE)
"""How names of files begin that draft for the model beside them, as llama.cpp has them."""
_KINDS = {
    "mmproj": "a projector of pictures or sounds",
    "imatrix": "a matrix of importances, for rounding",
    "adapter": "an adapter (LoRA), which changes a model",
}
"""By `general.type`, all but `model`."""
_BY_ARCHITECTURE = {"clip": "mmproj"}
"""`general.type` of older files, which do not say it."""


def models_among(files: Iterable[str]) -> list[str]:
    """Return the GGUF files that are models, in order, by their names; those that draft where there is nothing else.

    >>> models_among(["mmproj-vl-Q8_0.gguf", "vl-Q8_0.gguf", "mtp-vl-Q8_0.gguf"]), models_among(["eagle3-vl.gguf"])
    (['vl-Q8_0.gguf'], ['eagle3-vl.gguf'])
    """
    ggufs = sorted(f for f in files if f.lower().endswith(".gguf") and not _BESIDE.search(f))
    return [file for file in ggufs if not _DRAFTS.search(file)] or ggufs


def is_model(path: Path) -> bool:
    """Tell by its header that a GGUF file is a model; one that cannot be read may be."""
    from forerun.weights.gguf_header import read_header  # late, as it imports NumPy

    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return no_model(read_header(data).metadata) is None
    except (LoadError, OSError, ValueError):
        return True


def no_model(metadata: Mapping[str, object]) -> str | None:
    """Return what a file is by its header if it is not a model, else None."""
    kind = metadata.get("general.type") or _BY_ARCHITECTURE.get(
        str(metadata.get("general.architecture"))
    )
    return _KINDS.get(str(kind))
