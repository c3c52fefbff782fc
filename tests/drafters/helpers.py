"""Sequences without a model, the checks every draft must pass, and what an object holds."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Outcome, Seq

GREEDY = SamplingParams(temperature=0.0)
NO_OUTCOME = Outcome(path=(), emitted=())


def sequence(tokens: Sequence[int], seq_id: int = 0, num_prompt: int | None = None) -> Seq:
    """A greedy sequence; the first `num_prompt` tokens (default: all but one) are its prompt."""
    num_prompt = max(1, len(tokens) - 1) if num_prompt is None else num_prompt
    seq = Seq(seq_id, list(tokens[:num_prompt]), GREEDY, seed=0)
    seq.tokens.extend(tokens[num_prompt:])
    return seq


def check_draft(draft: Draft, budget: int) -> None:
    """A well-formed tree within the budget, no token twice below one node."""
    assert len(draft) <= budget
    tree.check(draft.parents)
    assert len(set(zip(draft.parents, draft.tokens, strict=True))) == len(draft)


def held_nbytes(*roots: object) -> int:
    """Bytes of everything reachable from `roots`, each object once, by `sys.getsizeof`."""
    seen: set[int] = set()
    total = 0
    stack: list[object] = list(roots)
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, torch.Tensor):
            total += item.element_size() * item.nelement()
        stack.extend(_parts(item))
    return total


def _parts(item: object) -> Iterable[object]:
    if isinstance(item, str | bytes | int | float | array | np.ndarray | torch.Tensor):
        return ()
    if isinstance(item, Mapping):
        return [*item.keys(), *item.values()]
    if isinstance(item, Iterable):
        return list(item)
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    return (
        [*vars(item).values()] if hasattr(item, "__dict__") else [getattr(item, n) for n in slots]
    )
