"""Opens a model file of whatever format."""

from __future__ import annotations

from pathlib import Path

from forerun.core.errors import LoadError
from forerun.weights.base import Checkpoint as Checkpoint
from forerun.weights.gguf import GgufCheckpoint
from forerun.weights.hf import HfCheckpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. Raises LoadError if it is neither, or damaged."""
    path = Path(path)
    if path.is_dir():
        return HfCheckpoint(path)
    if path.exists() and not path.is_file():
        raise LoadError(f"{path} is a pipe or a device: give a GGUF file or a Hugging Face folder")
    if not path.is_file():
        raise LoadError(f"{path} does not exist: give a GGUF file or a Hugging Face folder")
    return GgufCheckpoint(path)
