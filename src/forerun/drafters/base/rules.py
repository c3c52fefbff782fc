"""What `propose` must return, checked in every step: a wrong draft is reported by name, before it reaches a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.errors import DrafterError, short_repr
from forerun.core.types import Draft
from forerun.drafters.base.contract import Drafter


def check(
    drafter: Drafter, drafts: object, budgets: Sequence[int], vocab_size: int | None = None
) -> None:
    """Check what a drafter proposed; the tokens only if the vocabulary is known.

    Raises DrafterError, which names the drafter and the rule that they break.
    """
    if broken := broken_rule(drafts, budgets, vocab_size):
        name = type(drafter).__name__
        raise DrafterError(f"drafter {name}: {broken} (the rules: docs/adding-a-drafter.md)")


def broken_rule(drafts: object, budgets: Sequence[int], vocab_size: int | None) -> str | None:
    """Say what is wrong with the drafts for sequences of these budgets; None if nothing is."""
    if not isinstance(drafts, list | tuple):
        return f"propose returned {_a(drafts)} instead of a list of drafts"
    if len(drafts) != len(budgets):
        return f"propose returned {len(drafts)} drafts for {len(budgets)} sequences"
    broken = (_broken(draft, n, vocab_size) for draft, n in zip(drafts, budgets, strict=True))
    return next(filter(None, broken), None)


def _broken(draft: object, budget: int, vocab_size: int | None) -> str | None:
    if not isinstance(draft, Draft):
        return f"propose returned {_a(draft)} instead of a Draft: EMPTY_DRAFT is an empty one"
    if len(draft) > budget:
        return (
            f"a draft has {len(draft)} nodes, its budget was {budget}: draft.trim(budget) cuts it"
        )
    for name, values in (("token", draft.tokens), ("parent", draft.parents)):
        for value in values:
            if type(value) is not int:
                return (
                    f"a draft's {name} is {_a(value)} instead of an int: array.tolist() gives ints"
                )
    for token in draft.tokens:
        if vocab_size is not None and not 0 <= token < vocab_size:
            return f"token {token} is not in the vocabulary of {vocab_size}"
    return _broken_confidence(draft.confidence) or _broken_shape(draft)


def _broken_shape(draft: Draft) -> str | None:
    num = len(draft.tokens)
    for name, values in (("parents", draft.parents), ("confidence", draft.confidence)):
        if values is not None and len(values) != num:
            return f"a draft has {num} tokens but {len(values)} of {name}"
    for node, parent in enumerate(draft.parents):
        if not -1 <= parent < node:
            return f"node {node} has parent {parent}; it must be -1 or an earlier node"
    return None


def _broken_confidence(confidence: object) -> str | None:
    if confidence is None:
        return None
    if not isinstance(confidence, list | tuple):
        return f"a draft's confidence is {_a(confidence)} instead of a tuple of probabilities"
    for p in confidence:
        if not (isinstance(p, int | float | np.floating) and 0 <= p <= 1):
            return (
                f"a draft's confidence is {short_repr(p)}, which is not a probability from 0 to 1"
            )
    return None


def _a(value: object) -> str:
    """Name the type of a value with its article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
