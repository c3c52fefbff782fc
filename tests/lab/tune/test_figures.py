"""What was measured: costs between and beyond what was timed, and the arithmetic of a score."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forerun.lab.tune.figures import DrafterFigures, PassTime, PassTimes


def times(*rows: tuple[int, int, int, float]) -> PassTimes:
    return PassTimes(tuple(PassTime(*row) for row in rows))


TIMES = times(
    (128, 1, 1, 4.0), (128, 1, 4, 6.0), (128, 1, 8, 10.0), (128, 4, 4, 8.0), (128, 4, 8, 12.0),
    (512, 1, 1, 5.0), (512, 1, 4, 7.5), (512, 1, 8, 12.5), (512, 4, 4, 10.0), (512, 4, 8, 15.0),
)  # fmt: skip
FIGURES = DrafterFigures(
    drafter="suffix:num_draft=3",
    passes=10,
    emitted=25,
    drafted=30,
    accepted=15,
    rows={1: 4, 4: 6},
    draft_cost={0: 0.01, 3: 0.05},
    draft_total=0.4,
    nodes=((0.6, 0.9), (0.6, 0.5)),
)


def test_costs_are_plain_passes_of_the_same_context():
    assert TIMES.plain_ms == 4.5
    assert [TIMES.cost(rows) for rows in (1, 2, 4, 6, 8)] == pytest.approx([1, 7 / 6, 1.5, 2, 2.5])
    assert TIMES.cost(12) == pytest.approx(3.5)  # the last line goes on


def test_larger_batches_count_where_there_are_any():
    assert all(TIMES.costs(1).predict(k) == TIMES.cost(k) for k in range(1, 17))
    both = TIMES.costs(4)
    assert both.predict(4) == pytest.approx((1.5 + 2.0) / 2)
    assert both.predict(1) == 1


@given(st.lists(st.floats(0.1, 100), min_size=4, max_size=4))
@example([0.1875, 3.3830566117441743, 28.0, 1.0])
def test_more_rows_never_cost_less(ms):
    noisy = times(*[(9, 1, rows, t) for rows, t in zip((1, 2, 4, 8), ms, strict=True)])
    costs = [noisy.cost(rows) for rows in range(1, 20)]
    assert costs == sorted(costs)


def test_a_score_is_tokens_over_plain_passes():
    assert FIGURES.tau == 2.5
    assert FIGURES.acceptance_rate == 0.5
    assert FIGURES.pass_total(TIMES) == pytest.approx(4 * 1 + 6 * 1.5)
    assert FIGURES.speedup(TIMES) == pytest.approx(25 / (13 + 0.4))
