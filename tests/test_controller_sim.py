"""The replay that the controller is measured with: what it says, and that time is only what it is told."""

from __future__ import annotations

import pytest

from dev.controller_sim import Answer, batches, compact, compare, pass_cost, replay
from forerun.engine.controller import Fixed

COSTS = {1: 1.0, 2: 1.1, 4: 1.3}
LOOP = [Answer(str(i), "loop", [7, 1, 2, 3, i], [1, 2, 3, 9] * 10) for i in range(10, 14)]
DULL = [Answer(str(i), "dull", [i], [*range(100 * i, 100 * i + 30)]) for i in range(20, 22)]
ANSWERS = compact([*LOOP, *DULL])


def test_costs_lie_on_lines_between_and_beyond_the_table():
    assert [pass_cost(k, COSTS) for k in (1, 2, 3, 4, 6)] == pytest.approx([1, 1.1, 1.2, 1.3, 1.5])


@pytest.mark.parametrize("num_seqs", [1, 2])
def test_plain_decoding_takes_a_pass_for_each_token_after_the_first(num_seqs):
    seconds = replay(ANSWERS, "suffix", COSTS, num_seqs, Fixed(0))
    step = pass_cost(num_seqs, COSTS)
    assert seconds == pytest.approx(
        {"loop": 4 / num_seqs * 39 * step, "dull": 2 / num_seqs * 29 * step}
    )


def test_what_repeats_gains_and_what_does_not_is_hardly_slower():
    rows = {row.category: row for row in compare(ANSWERS, "suffix:shared_tokens=0", COSTS, 1, 4)}
    assert rows["loop"].auto > 2
    assert rows["loop"].auto > 0.9 * rows["loop"].best
    assert rows["dull"].best == 1
    assert 0.97 < rows["dull"].auto <= 1


def test_batches_are_of_one_category():
    sizes = [[a.category for a in batch] for batch in batches([*LOOP, *DULL, *LOOP], 3)]
    assert sizes == [["loop"] * 3, ["loop"] * 3, ["dull"] * 2, ["loop"] * 2]
