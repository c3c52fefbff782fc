"""How many rows of which prompts a pass computes: a short prompt is not behind a long one, and answers keep their pace.

A pass takes as long as all its rows, and every sequence in it waits for all of them. So

- prompts that a pass can read whole come first, those with the least work before the others (shortest remaining time
  first): the tokens that are left of the prompt, and those that may be written, so that completions of a few tokens
  (an editor's) come before chats; a request's own `priority` comes before all of this;
- the prompt that has waited longest gets a part of every pass, so that a stream of short ones cannot starve it: as many
  rows as the shortest has left, up to a quarter of the pass;
- a pass that reads a prompt whole is not filled up with a longer one: that gets as many rows again, no more;
- beside answers that are being written, the rows of prompts take about as long as the pass takes without them.

No row depends on the others of its pass, so none of this changes a token.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.types import Seq

LEAST_ROWS = 8
"""Rows of prompts in a pass at least, if any are to be read: the kernels take as many at a time."""
LEAST_GAP_S = 0.05
"""Seconds that prompts may always take of a pass: so short a gap is not seen."""
WEIGHT = 0.2
"""Of the last pass in the mean of what a row costs."""
MOST_WRITTEN = 512
"""Tokens of an answer that count as work, at most: few requests that allow more write them."""

Rank = tuple[int, int]
"""A request's priority, and the work that is left of it in tokens: the lowest comes first."""


def rank(seq: Seq, num_unread: int) -> Rank:
    """Rank a sequence of whose prompt so many tokens are to be read."""
    most = seq.params.max_tokens
    return seq.params.priority, num_unread + min(
        MOST_WRITTEN if most is None else most, MOST_WRITTEN
    )


def shares(remaining: Sequence[int], budget: int, ranks: Sequence[Rank] = ()) -> list[int]:
    """Share the rows of a pass among prompts, by the tokens (at least one each) that are left of them, oldest first.

    >>> shares([8000], 256), shares([8000, 30], 256), shares([8000, 6000], 256)
    ([256], [30, 30], [64, 192])
    >>> shares([8000, 6000, 30], 256, [(0, 8512), (-1, 6512), (0, 542)])
    [64, 192, 0]
    """
    ranks = ranks or [(0, left) for left in remaining]

    def turn(i: int) -> tuple[int, bool, int]:
        return ranks[i][0], remaining[i] > budget, ranks[i][1]

    order = sorted(range(len(remaining)), key=turn)
    rows = [0] * len(remaining)
    rows[0] = min(budget // 4, remaining[order[0]], remaining[0])
    left, num_whole = budget - rows[0], 0
    for i in order:
        wanted = remaining[i] - rows[i]
        if wanted > left:
            if num_whole:  # the oldest has its part already, unless it is read whole
                unread = rows[0] if rows[0] < remaining[0] else 0
                left = min(left, max(0, max(LEAST_ROWS, num_whole) - unread))
            rows[i] += left
            break
        rows[i], left, num_whole = remaining[i], left - wanted, num_whole + remaining[i]
    return rows


class PrefillPace:
    """Learns what rows of prompts cost, and how many of them a pass may have beside answers."""

    def __init__(self, most_rows: int) -> None:
        """`most_rows` is how many a pass may have at most, and has where nothing else runs."""
        self.most_rows = most_rows
        self.pass_s = 0.0
        """Seconds of the last pass without prompts; 0 before there was one."""
        self._row_s = 0.0
        """Seconds of a prompt's row; 0 before it is known."""

    def budget(self, *, is_decoding: bool) -> int:
        """Return how many rows of prompts the next pass may have."""
        if not is_decoding or not self._row_s:
            return self.most_rows
        rows = int(max(self.pass_s, LEAST_GAP_S) / self._row_s)
        return min(max(rows, LEAST_ROWS), self.most_rows)

    def learn(self, num_rows: int, num_read: int, pass_s: float) -> None:
        """Learn from a pass of so many seconds, `num_read` of whose rows were of prompts."""
        if num_read >= LEAST_ROWS:
            own_s = pass_s - (self.pass_s if num_read < num_rows else 0.0)
            row_s = max(own_s, pass_s / 4) / num_read
            self._row_s += (WEIGHT if self._row_s else 1.0) * (row_s - self._row_s)
