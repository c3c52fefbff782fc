"""The file in which an MLP speculator keeps what it learned while serving, one a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.drafting.learned import SUFFIX, KeptFile, origin_of, path_of

MAP_SUFFIX = f".network{SUFFIX}"


class KeptMap:
    """The file of what a network that drafts has learned: a square matrix, fp16, and tokens, int32.

    Of processes that run at once the one that keeps last is right.
    """

    def __init__(
        self, model: Path, vocabulary: str, network: str, place: Path | None = None
    ) -> None:
        """Name the file; `network` stands for the weights that the matrix goes with."""
        self.path = path_of(model, place, MAP_SUFFIX)
        self._file = KeptFile(self.path, origin_of(model, vocabulary) | {"network": network})
        self._kept = 0

    @property
    def is_time(self) -> bool:
        """Say whether a few minutes went by since it was kept."""
        return self._file.is_time

    def load(self, width: int, vocab_size: int) -> tuple[NDArray[np.float32], list[int]] | None:
        """Read the matrix (width, width) and the tokens; None if there are none, or they cannot be used."""
        with self._file.warned("used"):
            held = self._file.read()
            if not held:
                return None
            num = 2 * width * width
            if len(held) < num or (len(held) - num) % 4:
                raise ValueError("it is damaged")
            matrix = np.frombuffer(held[:num], np.float16).reshape(width, width)
            tokens = np.frombuffer(held[num:], np.int32).tolist()
            if not np.isfinite(matrix).all() or not all(0 <= t < vocab_size for t in tokens):
                raise ValueError("it is damaged")
            return matrix.astype(np.float32), tokens
        return None

    def keep(self, matrix: NDArray[np.float32], tokens: Sequence[int], num_steps: int) -> None:
        """Write both, if there were steps since they were written."""
        if num_steps == self._kept:
            return
        with self._file.warned("written"), self._file.locked():
            self._file.write(
                matrix.astype(np.float16).tobytes() + np.array(tokens, np.int32).tobytes()
            )
            self._kept = num_steps
