"""How much of an answer says again what stood in it before: small models fall into loops, which are easy to draft."""

from __future__ import annotations

from collections.abc import Sequence

RUN = 8
"""Tokens in a row that are no coincidence."""
MUCH = 0.4
"""Share of an answer from which on it is said to repeat itself; code and tables repeat a fifth of theirs."""


def num_repeated(token_ids: Sequence[int]) -> int:
    """Count the tokens that end a run of `RUN` tokens which stood in the answer before.

    >>> num_repeated([1, 2, 3] * 6), num_repeated(range(18))
    (8, 0)
    """
    runs = [tuple(token_ids[i - RUN : i]) for i in range(RUN, len(token_ids) + 1)]
    return len(runs) - len({*runs})


def is_much(num_repeated: int, num_tokens: int) -> bool:
    """Whether so much of an answer is said again that its speed says little about other answers."""
    return num_repeated > MUCH * num_tokens
