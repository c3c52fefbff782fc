"""A model file as it lies on disk: metadata, tensors in their stored precision, the tokenizer.

Nothing is computed at opening, and the weights stay memory-mapped. What the numbers mean to a
decoder is the business of `model/arch`; reading a concrete format is that of `gguf.py` and `hf.py`.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from forerun.core.errors import LoadError
from forerun.core.params import SamplingParams
from forerun.system.opened import OpenedFile
from forerun.text.tokenizer import Tokenizer
from forerun.weights.stored import StoredTensor


class Checkpoint(ABC):
    """A model on disk.

    `config` is config.json, or the GGUF metadata without the arrays of the tokenizer;
    `architecture` is `architectures[0]` of the one or `general.architecture` of the other.
    """

    path: Path
    kind: Literal["gguf", "hf"]
    architecture: str
    config: Mapping[str, object]
    files: Sequence[OpenedFile]
    """Everything that was opened for the metadata and the tensors: the key of what is made of them."""
    _tensors: Mapping[str, StoredTensor]

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self._tensors)

    def tensor(self, name: str) -> StoredTensor:
        """Return one tensor as stored. Raises LoadError with the closest names if there is none."""
        if name in self._tensors:
            return self._tensors[name]
        close = difflib.get_close_matches(name, self._tensors, n=3)
        hint = f"; the closest are {', '.join(close)}" if close else ""
        raise LoadError(f"{self.path} has no tensor '{name}'{hint}")

    def raw(self, name: str) -> StoredTensor:
        """Return one tensor, also of a type that no weight has. Raises LoadError as `tensor` does."""
        return Checkpoint.tensor(self, name)

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer inside. Raises LoadError if there is none or it is of an unknown kind."""

    @abstractmethod
    def default_params(self) -> SamplingParams:
        """Return how the model's files say it should be sampled, else greedy. Raises LoadError for a wrong value."""

    def _checked(self, tokenizer: Tokenizer, embedding: str, num_rows: object) -> Tokenizer:
        """Raise LoadError for a vocabulary that is larger than the embedding."""
        if isinstance(num_rows, int) and tokenizer.vocab_size > num_rows:
            raise LoadError(
                f"{self.path}: the vocabulary has {tokenizer.vocab_size} tokens, "
                f"but {embedding} has {num_rows} rows"
            )
        return tokenizer
