"""Vectors of texts, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from forerun.core.params import BATCH_PRIORITY, SamplingParams
from forerun.engine.loop import Request

Vectors = NDArray[np.float32]
_LARGEST = 32760
"""Of whole numbers that fit 16 bits."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A text's vector, of length 1."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Count its numbers."""
        return len(self.embedding)

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """A prompt and its vector: `outputs.embedding`."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True

    @classmethod
    def of(cls, request: Request) -> EmbeddingRequestOutput:
        """Return the vector of a request that was read with `params`."""
        tokens = request.output().prompt_token_ids
        return cls(request.id, EmbeddingOutput(_vector(request).tolist()), tokens)


def params(pooling: Literal["last", "mean", "none"], priority: int | None = None) -> SamplingParams:
    """Return what a prompt is read with for its states. Raises RequestError for a pooling that is none."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=0,
        pooling=pooling,
        max_draft=0,
        detokenize=False,
        priority=BATCH_PRIORITY if priority is None else priority,
    )


def normalized(rows: Vectors, p: int = 2) -> Vectors:
    """Divide rows by their p-norms, so that vectors have length 1; 0, as llama.cpp has it: the largest is 32760."""
    lengths = np.linalg.norm(rows, ord=p or np.inf, axis=1, keepdims=True)
    if p == 0:
        lengths = lengths / np.float32(_LARGEST)
    return np.asarray(rows / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)


def _vector(request: Request) -> Vectors:
    return normalized(request.runs[0].states())[0]  # type: ignore[no-any-return]
