"""How far the prompts of a request have been read, told while nothing else can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from forerun.core.types import Seq
from forerun.engine.request import RequestHandle


class PromptProgress(NamedTuple):
    """Tokens of a prompt that the cache holds, of which it had `num_cached` before, and the seconds that it took."""

    completion: int
    """The index of the prompt's first completion among all of the request."""
    num_prompt: int
    num_cached: int
    num_read: int
    seconds: float


class ProgressReader:
    """Follows one request; the engine thread's own."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[float, int]] = {}
        """By completion: when its prompt was begun, and the tokens that were told last."""

    def news(
        self,
        handles: Sequence[RequestHandle],
        num_read: Callable[[Seq], int | None],
        start_s: float,
        end_s: float,
    ) -> list[PromptProgress]:
        """Tell what a step from `start_s` to `end_s` has read; of a prompt that it began also where it began."""
        found, completion = [], 0
        for handle in handles:
            seq, read = handle.runs[0].seq, num_read(handle.runs[0].seq)
            begun_s, told = self._told.get(completion, (start_s, -1))
            if read is not None and told not in (read, seq.num_prompt):
                known = (completion, seq.num_prompt, seq.num_reused)
                if told < 0:
                    found.append(PromptProgress(*known, seq.num_reused, 0.0))
                found.append(PromptProgress(*known, read, end_s - begun_s))
                self._told[completion] = begun_s, read
            completion += len(handle.runs)
        return found
