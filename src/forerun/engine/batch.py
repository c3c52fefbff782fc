"""From the sequences of a step to one pass of the target: which rows are whose, and which of them need logits.

R rows of the pass, M rows with logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.batch import Batch, Segment
from forerun.engine.sequence import SequenceStep

if TYPE_CHECKING:
    from forerun.core.arrays import Floats


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the target: its sequences, its batch, and the rows of it that the head must see."""

    steps: tuple[SequenceStep, ...]
    batch: Batch
    logit_rows: tuple[int, ...]
    num_read: int
    """Rows of prompts that are being read."""

    def groups(self, most: int | None) -> Iterator[list[SequenceStep]]:
        """Yield the sequences in order, in groups of `most` rows with logits, one at least; all for None."""
        group: list[SequenceStep] = []
        for step in self.steps:
            if group and most and step.logit_rows.stop - group[0].logit_rows.start > most:
                yield group
                group = []
            group.append(step)
        if group:
            yield group

    def head_rows(self, hidden: Floats, rows: range) -> Floats:
        """Select the states of some rows with logits from all (R, D); a view where every row has logits."""
        if len(self.logit_rows) == self.batch.num_rows:
            return hidden[rows.start : rows.stop]
        return hidden[list(self.logit_rows[rows.start : rows.stop])]


def pack(steps: Sequence[SequenceStep]) -> Pass:
    """Pack the rows of several sequences into one pass, in order; a sequence that fails there is left out."""
    packed, segments, logit_rows, row = [], [], list[int](), 0
    for step in steps:
        with step.isolated():
            segment = Segment.of(step.seq.slot, step.base, step.tokens, step.draft)
            step.rows = range(row, row + segment.num_rows)
            row = step.rows.stop
            first = len(logit_rows)
            if step.base + len(step.tokens) == len(step.seq.tokens):
                logit_rows += step.rows[len(step.tokens) - 1 :]
            step.logit_rows = range(first, len(logit_rows))
            segments.append(segment)
            packed.append(step)
    num_read = sum(len(step.tokens) for step in packed if not step.state.has_begun)
    return Pass(tuple(packed), Batch(tuple(segments)), tuple(logit_rows), num_read)
