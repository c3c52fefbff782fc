"""The replay that the controller is measured with: what it says, and that time is only what it is told."""

from __future__ import annotations

import pytest

from forerun._native import CostCurve
from forerun.engine.controller import Fixed
from tests.engine.recorded import Answer, World, batches, replay, speedups

COSTS = CostCurve({1: 1.0, 2: 1.1, 4: 1.3})
LOOP = [
    Answer(str(i), "loop", 0.0, [7, 1, 2, 3, i], [1, 2, 3, 9] * 10, "4" * 40) for i in range(10, 14)
]
DULL = [
    Answer(str(i), "dull", 0.0, [i], [*range(100 * i, 100 * i + 30)], "0" * 30)
    for i in range(20, 22)
]
ANSWERS = [*LOOP, *DULL]
SUFFIX = World("suffix:shared_tokens=0", COSTS)


@pytest.mark.parametrize("num_seqs", [1, 2])
def test_plain_decoding_takes_a_pass_for_each_token_after_the_first(num_seqs):
    costs = replay(ANSWERS, SUFFIX, num_seqs, Fixed(0))
    step = COSTS.predict(num_seqs)
    assert costs == pytest.approx(
        {"loop": 4 / num_seqs * 39 * step, "dull": 2 / num_seqs * 29 * step}
    )


def test_what_repeats_gains_and_what_does_not_is_hardly_slower():
    found = speedups(ANSWERS, SUFFIX, 1)
    assert found["loop"] > 2
    assert found["loop"] > 0.9 * max(
        speedups(ANSWERS, SUFFIX, 1, Fixed(k))["loop"] for k in range(5)
    )
    assert 0.97 < found["dull"] <= 1


def test_recorded_guesses_are_as_right_as_they_were_and_cost_what_they_should():
    world = World("recorded", CostCurve({1: 1.0}), ask=0.0, node=0.5)
    costs = replay(ANSWERS, world, 1, Fixed(4))
    assert costs["loop"] == 4 * 8 * (1 + 4 * 0.5)  # 39 tokens after the first, five a pass
    assert costs["dull"] == 2 * (26 * 3 + 2.5 + 2 + 1.5)  # no more guesses than tokens are left


def test_a_slow_machine_costs_the_controller_time_but_not_the_count():
    seen = []

    class Watching(Fixed):
        def learn(self, steps, num_rows, draft_s, pass_s, num_read):
            seen.append(pass_s)

    slow = World("suffix", COSTS, slowdown=lambda step: 3.0)
    assert replay(DULL, slow, 1, Watching(0)) == replay(DULL, SUFFIX, 1, Fixed(0))
    assert set(seen) == {3.0}


def test_batches_are_of_one_category():
    sizes = [[a.category for a in batch] for batch in batches([*LOOP, *DULL, *LOOP], 3)]
    assert sizes == [["loop"] * 3, ["loop"] * 3, ["dull"] * 2, ["loop"] * 2]
