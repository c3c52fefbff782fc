"""A drafter that cannot do harm: if it raises, its sequences go on without it.

After an error the state of the drafter's sequences cannot be trusted, so it is asked about none of them again;
sequences that begin later get another chance, until it has failed too often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafters.base import Drafter
from forerun.engine.stats import SpecStats

MAX_ERRORS = 3
"""Errors after which a drafter is not asked any more."""

log = logging.getLogger(__name__)


class Guard:
    """Passes calls on for the sequences the drafter still answers for; counts errors in `stats`."""

    def __init__(self, drafter: Drafter, stats: SpecStats) -> None:
        self.inner = drafter
        self.features, self.draws = drafter.features, drafter.draws
        self._stats = stats
        self._num_errors = 0
        self._known: dict[int, Seq] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Hand a sequence over, unless the drafter has failed too often."""
        if self._num_errors >= MAX_ERRORS:
            return
        self._known[seq.id] = seq
        with self._guarded():
            self.inner.begin(seq, outcome)

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """The drafter's drafts; empty ones for sequences it has lost."""
        known = [(s, b) for s, b in zip(seqs, budgets, strict=True) if s.id in self._known]
        drafts: dict[int, Draft] = {}
        if known:
            with self._guarded():
                found = self.inner.propose([s for s, _ in known], [b for _, b in known])
                drafts = {s.id: draft for (s, _), draft in zip(known, found, strict=True)}
        return [drafts.get(seq.id, EMPTY_DRAFT) for seq in seqs]

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """What became of its drafts."""
        rows = zip(seqs, drafts, outcomes, strict=True)
        known = [row for row in rows if row[0].id in self._known]
        if known:
            with self._guarded():
                self.inner.observe(*map(list, zip(*known, strict=True)))

    def end(self, seq: Seq) -> None:
        """Forget a sequence."""
        if self._known.pop(seq.id, None) is not None:
            with self._guarded():
                self.inner.end(seq)

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """The drafter's."""
        return self.inner.nbytes(num_seqs, max_len)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """An error inside is counted, the first one told, and all sequences are taken away from the drafter."""
        try:
            yield
        except Exception as error:  # whatever it is, requests go on
            self._stats.drafter_errors += 1
            self._num_errors += 1
            if self._num_errors == 1:
                log.warning("the drafter failed, going on without it: %r", error, exc_info=error)
            lost, self._known = list(self._known.values()), {}
            for seq in lost:
                with suppress(Exception):  # let it free what it holds, if it still can
                    self.inner.end(seq)
