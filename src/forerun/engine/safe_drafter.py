"""A wrapper that isolates a drafter's errors: if it raises, its sequences go on without it.

After an error the state of the drafter's sequences cannot be trusted, so it is asked about none of them again;
sequences that begin later get another chance, until it has failed too often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from forerun.core.errors import ForerunError
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafting.base import Drafter, DrafterBytes
from forerun.drafting.rules import propose
from forerun.engine.stats import SpecStats

MAX_ERRORS = 3
"""Errors after which a drafter is not asked any more."""

log = logging.getLogger(__name__)


class SafeDrafter(Drafter):
    """Passes calls on for the sequences the drafter still answers for; counts errors in `stats`."""

    def __init__(self, drafter: Drafter, stats: SpecStats, vocab_size: int) -> None:
        self.inner, self.vocab_size = drafter, vocab_size
        self.features, self.max_nodes = drafter.features, drafter.max_nodes
        self.parts = (drafter,)
        self._stats = stats
        self._num_errors = 0
        self._known: dict[int, Seq] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Hand a sequence over, unless the drafter has failed too often."""
        if self._num_errors >= MAX_ERRORS:
            return
        self._known[seq.id] = seq
        with self._guarded("begin"):
            self.inner.begin(seq, outcome)

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Return the drafter's drafts; empty ones for sequences it has lost."""
        known = [(s, b) for s, b in zip(seqs, budgets, strict=True) if s.id in self._known]
        drafts: dict[int, Draft] = {}
        if known:
            with self._guarded("propose"):
                wanted = [s for s, _ in known], [b for _, b in known]
                found = propose(self.inner, *wanted, self.vocab_size)
                drafts = {s.id: draft for (s, _), draft in zip(known, found, strict=True)}
        return [drafts.get(seq.id, EMPTY_DRAFT) for seq in seqs]

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Pass on the outcomes of the drafts."""
        rows = zip(seqs, drafts, outcomes, strict=True)
        known = [row for row in rows if row[0].id in self._known]
        if known:
            with self._guarded("observe"):
                self.inner.observe(*map(list, zip(*known, strict=True)))

    def end(self, seq: Seq) -> None:
        """End the sequence in the drafter, unless it was given up there before."""
        if self._known.pop(seq.id, None) is not None:
            with self._guarded("end"):
                self.inner.end(seq)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Return the drafter's own account of its memory."""
        return self.inner.memory(num_seqs, max_len)

    @contextmanager
    def _guarded(self, verb: str) -> Iterator[None]:
        """Count an error inside, log the first one, and take all sequences away from the drafter."""
        try:
            yield
        except Exception as error:  # whatever it is, requests go on
            self._stats.drafter_errors += 1
            self._num_errors += 1
            if self._num_errors == 1:
                self._tell(verb, error)
            lost, self._known = list(self._known.values()), {}
            for seq in lost:
                with suppress(Exception):  # let it free what it holds, if it still can
                    self.inner.end(seq)

    def _tell(self, verb: str, error: Exception) -> None:
        """Describe an error in one line, with its place in the drafter's own code."""
        if isinstance(error, ForerunError):
            log.warning("%s; going on without drafts", error)
            return
        name, what = type(self.inner).__name__, f"{type(error).__name__}: {error}"
        log.warning(
            "drafter %s failed in %s: %s; going on without drafts", name, verb, what, exc_info=error
        )
