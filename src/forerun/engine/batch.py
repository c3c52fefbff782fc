"""From sequences and drafts to one pass, and back: which rows are whose, and which of them need logits.

R rows of the pass, M rows with logits, N nodes of one draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.batch import Batch, Segment
from forerun.core.types import Draft, Seq

if TYPE_CHECKING:
    from forerun.core.arrays import Floats


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """What one sequence computes in one pass: tokens its cache lacks, then a draft below the last of them.

    A prompt chunk that does not reach the prompt's end has no logits and no outcome.
    """

    seq: Seq
    segment: Segment
    draft: Draft
    is_complete: bool

    @classmethod
    def of(cls, seq: Seq, pending: Sequence[int], base: int, draft: Draft) -> SequenceRows:
        """Put a draft below pending tokens, the first of which follows `base` committed cache rows."""
        is_complete = base + len(pending) == len(seq.tokens)
        return cls(seq, Segment.of(seq.slot, base, pending, draft), draft, is_complete)

    @property
    def num_pending(self) -> int:
        """Committed tokens this pass feeds."""
        return len(self.segment.tokens) - len(self.draft)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the target: its batch, and the rows of it that the head must see."""

    seq_rows: tuple[SequenceRows, ...]
    batch: Batch
    logit_rows: tuple[int, ...]

    def spans(self) -> Iterator[tuple[SequenceRows, range, range]]:
        """Yield every sequence with its rows in the pass and its rows among the logits."""
        first = 0
        for one, rows in zip(self.seq_rows, self.batch.spans(), strict=True):
            stop = first + (1 + len(one.draft) if one.is_complete else 0)
            yield one, rows, range(first, stop)
            first = stop

    def groups(self, most: int | None) -> Iterator[list[tuple[SequenceRows, range, range]]]:
        """Yield `spans` in order, in groups that have `most` rows among the logits, at least one; all for None."""
        group: list[tuple[SequenceRows, range, range]] = []
        for span in self.spans():
            if group and most is not None and span[2].stop - group[0][2].start > most:
                yield group
                group = []
            group.append(span)
        if group:
            yield group

    @property
    def is_decoding(self) -> bool:
        """True if no sequence reads a prompt."""
        return all(one.is_complete and one.num_pending == 1 for one in self.seq_rows)

    def head_rows(self, hidden: Floats, rows: range) -> Floats:
        """Select the states of some rows with logits from all (R, D); a view where every row has logits."""
        if len(self.logit_rows) == self.batch.num_rows:
            return hidden[rows.start : rows.stop]
        return hidden[list(self.logit_rows[rows.start : rows.stop])]


def pack(seq_rows: Sequence[SequenceRows]) -> Pass:
    """Pack what several sequences compute into one pass, in order."""
    logit_rows: list[int] = []
    row = 0
    for one in seq_rows:
        stop = row + one.segment.num_rows
        if one.is_complete:
            logit_rows += range(row + one.num_pending - 1, stop)
        row = stop
    return Pass(tuple(seq_rows), Batch(tuple(s.segment for s in seq_rows)), tuple(logit_rows))
