"""llama-cpp-python's processors and stopping criteria: functions of all ids, the prompt's too, and logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from forerun.core.params import LogitsProcessor

Logits = Any
"""(V,), fp32, a NumPy array."""
Ids = Any
"""A NumPy array of token ids."""


class LogitsProcessorList(list[Callable[[Ids, Logits], Logits]]):
    """Processors that are called one after the other."""

    def __call__(self, input_ids: Ids, scores: Logits) -> Logits:
        """Return the logits that all of them leave."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[Callable[[Ids, Logits], bool]]):
    """Criteria of which one is enough to end an answer."""

    def __call__(self, input_ids: Ids, logits: Logits) -> bool:
        """Tell whether one of them holds."""
        return any(criterion(input_ids, logits) for criterion in self)


def as_ours(
    processor: Callable[[Ids, Logits], Logits] | None,
    criteria: Callable[[Ids, Logits], bool] | None,
    end: int | None,
) -> tuple[LogitsProcessor, ...]:
    """Make them processors of a request; criteria that hold leave only the token that ends a text."""

    def process(prompt: Sequence[int], generated: Sequence[int], logits: Logits) -> Logits:
        ids = np.array([*prompt, *generated], dtype=np.intc)
        if processor is not None:
            logits = processor(ids, logits)
        if criteria is not None and end is not None and criteria(ids, logits):
            logits = np.full_like(logits, -np.inf)
            logits[end] = 0
        return logits

    return () if processor is None and criteria is None else (process,)
