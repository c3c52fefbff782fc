"""A model file as it lies on disk: metadata, tensors in their stored precision, the tokenizer.

Nothing is computed at opening, and the weights stay memory-mapped. What the numbers mean to a
decoder is the business of `nn/arch`; reading a concrete format is that of `gguf.py` and `hf.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from forerun.core.errors import LoadError
from forerun.formats.gguf import GgufCheckpoint
from forerun.formats.hf import HfCheckpoint
from forerun.formats.tokenizer import Tokenizer
from forerun.formats.weights import StoredTensor


class Checkpoint(Protocol):
    """A model on disk.

    `config` is config.json, or the GGUF metadata without the arrays of the tokenizer;
    `architecture` is `architectures[0]` of the one or `general.architecture` of the other.
    """

    path: Path
    kind: Literal["gguf", "hf"]
    architecture: str
    config: Mapping[str, object]

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        ...

    def tensor(self, name: str) -> StoredTensor:
        """One tensor as stored. Raises LoadError with the closest names if there is none."""
        ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer inside. Raises LoadError if there is none or it is of an unknown kind."""
        ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. Raises LoadError if it is neither, or damaged."""
    path = Path(path)
    if path.is_dir():
        return HfCheckpoint(path)
    if not path.is_file():
        raise LoadError(f"{path} does not exist: give a GGUF file or a Hugging Face folder")
    return GgufCheckpoint(path)
