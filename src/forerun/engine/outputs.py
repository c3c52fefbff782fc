"""What a request gives back, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.types import FinishReason, TokenLogprob
from forerun.engine.request import RequestState
from forerun.engine.stats import SpecStats


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt. `stats` counts what was drafted, accepted and emitted for it."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None
    stats: SpecStats
    ttft_s: float | None

    @classmethod
    def of(cls, index: int, run: RequestState) -> CompletionOutput:
        """What a sequence has so far."""
        return cls(
            index=index,
            text=run.text,
            token_ids=tuple(run.seq.generated),
            finish_reason=run.seq.finish_reason,
            logprobs=None if run.seq.params.logprobs is None else tuple(run.logprobs),
            stats=run.stats,
            ttft_s=run.ttft_s,
        )


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its `n` completions."""

    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
