"""Vectors of texts and how alike they are, under vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from forerun.core.params import BATCH_PRIORITY, SamplingParams
from forerun.engine.loop import Request
from forerun.text.reranker import pairs

Vectors = NDArray[np.float32]
Pooling = Literal["last", "mean", "none"]
"""The last token's state, the mean of all, or all."""
AT_ONCE = 8
"""Texts whose states the head reads at once: it reads the whole vocabulary, and nothing else decodes meanwhile."""
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
class PoolingOutput:
    """A text's vector (D,), or those of its tokens (tokens, D), of length 1."""

    data: Vectors


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput:
    """A prompt and what was made of its states: `outputs.data`."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool = True

    @classmethod
    def of(cls, request: Request) -> PoolingRequestOutput:
        """Return the vectors of a request that was read with `params`."""
        rows = normalized(request.runs[0].states())
        data = rows if request.runs[0].seq.params.pooling == "none" else rows[0]
        return cls(request.id, PoolingOutput(data), request.output().prompt_token_ids)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How alike two texts are: the cosine of the angle between their vectors; of a reranker the chance of yes."""

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """A pair of texts and how alike they are: `outputs.score`."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    finished: bool = True


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


def params(pooling: Pooling, priority: int | None = None) -> SamplingParams:
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


def scores(
    firsts: list[EmbeddingRequestOutput], seconds: list[EmbeddingRequestOutput]
) -> list[ScoringRequestOutput]:
    """Compare texts by their vectors. Raises RequestError as `pairs`."""
    return [
        ScoringRequestOutput(
            f"{a.request_id}-{b.request_id}",
            ScoringOutput(float(np.dot(a.outputs.embedding, b.outputs.embedding))),
            [*a.prompt_token_ids, *b.prompt_token_ids],
        )
        for a, b in pairs(firsts, seconds)
    ]


def judged(
    requests: Sequence[Request], score: Callable[[Vectors], Vectors]
) -> Iterator[ScoringRequestOutput]:
    """Score the last states (n, D) of requests that were read with `params`, a few at once."""
    for start in range(0, len(requests), AT_ONCE):
        some = requests[start : start + AT_ONCE]
        found = score(np.concatenate([one.runs[0].states() for one in some]))
        for one, value in zip(some, found.tolist(), strict=True):
            tokens = one.output().prompt_token_ids
            yield ScoringRequestOutput(one.id, ScoringOutput(value), tokens)
