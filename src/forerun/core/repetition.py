"""How much of an answer says again what stood in it before: small models fall into loops, which are easy to draft."""

from __future__ import annotations

from collections.abc import Sequence

RUN = 8
"""Tokens in a row that are no coincidence."""
MUCH = 0.4
"""Share of an answer from which on it is said to repeat itself; code and tables repeat a fifth of their tokens."""


def num_repeated(token_ids: Sequence[int]) -> int:
    """Count the tokens that end a run of `RUN` tokens which stood in the answer before.

    >>> num_repeated([1, 2, 3] * 6), num_repeated(range(18))
    (8, 0)
    """
    return Repeats(0).count(token_ids)


class Repeats:
    """The same count of an answer that grows: each token is looked at once."""

    def __init__(self, start: int) -> None:
        """`start` is where the answer begins among the tokens that are counted."""
        self._stop = start + RUN
        self._num = 0
        self._runs = set[tuple[int, ...]]()

    def count(self, token_ids: Sequence[int]) -> int:
        """Count in all the tokens, which are those of the last call and more."""
        num_tokens = len(token_ids)  # once: another thread may be adding some
        for stop in range(self._stop, num_tokens + 1):
            run = tuple(token_ids[stop - RUN : stop])
            self._num += run in self._runs
            self._runs.add(run)
        self._stop = max(self._stop, num_tokens + 1)
        return self._num


def is_much(num_repeated: int, num_tokens: int) -> bool:
    """Return whether so much of an answer is said again that its speed says little about other answers."""
    return num_repeated > MUCH * num_tokens
