"""A part of a checkpoint under other names: a head that drafts, seen as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.core.params import SamplingParams
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.stored import StoredTensor


class RenamedCheckpoint(Checkpoint):
    """A checkpoint whose tensors are called otherwise; those that are not renamed are not there."""

    def __init__(self, checkpoint: Checkpoint, prefixes: Mapping[str, str]) -> None:
        """Take the tensors whose names begin with a value of `prefixes`, and let them begin with its key."""
        self.checkpoint = checkpoint
        self.path, self.kind, self.architecture = (
            checkpoint.path,
            checkpoint.kind,
            checkpoint.architecture,
        )
        self.config = checkpoint.config
        self._theirs = {
            new + name.removeprefix(old): name
            for new, old in prefixes.items()
            for name in checkpoint.names()
            if name.startswith(old)
        }
        self._tensors = {new: checkpoint.raw(name) for new, name in self._theirs.items()}

    def tensor(self, name: str) -> StoredTensor:
        """Return one tensor, by its new name. Raises LoadError as the checkpoint does."""
        if name in self._theirs:
            return self.checkpoint.tensor(self._theirs[name])
        return super().tensor(name)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the checkpoint."""
        return self.checkpoint.tokenizer()

    def default_params(self) -> SamplingParams:
        """Return the sampling parameters that the checkpoint recommends."""
        return self.checkpoint.default_params()
