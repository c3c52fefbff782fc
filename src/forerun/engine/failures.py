"""Errors that belong to one sequence: they end that one, and the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Failures:
    """Collects what was raised for single sequences since it was last asked."""

    def __init__(self) -> None:
        self._errors: dict[int, Exception] = {}

    @contextmanager
    def of(self, seq_id: int) -> Iterator[None]:
        """Keep an error that is raised inside: it is the sequence's own."""
        try:
            yield
        except Exception as error:
            self._errors.setdefault(seq_id, error)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._errors

    def take(self) -> dict[int, Exception]:
        """Return the errors by sequence, and forget them."""
        errors, self._errors = self._errors, {}
        return errors
