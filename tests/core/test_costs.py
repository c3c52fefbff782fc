"""What things cost: a table with straight lines, and measurements that take its place."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun._native import CostCurve

POINTS = st.dictionaries(st.integers(1, 64), st.floats(0.1, 100), min_size=1, max_size=6)


@given(POINTS)
def test_a_table_has_its_points_and_straight_lines_between(points):
    curve, known = CostCurve(points), sorted(points.items())
    assert all(curve.predict(size) == pytest.approx(cost) for size, cost in known)
    for (a, low), (b, high) in itertools.pairwise(known):
        assert curve.predict((a + b) // 2) == pytest.approx(
            low + ((a + b) // 2 - a) / (b - a) * (high - low)
        )


def test_beyond_the_last_point_the_last_line_goes_on_but_not_below_nothing():
    assert CostCurve({1: 2.0, 8: 4.0, 16: 8.0}).v(32) == pytest.approx(8.0)
    assert CostCurve({1: 2.0}).v(32) == 1, "nothing is known of its slope"
    assert CostCurve({1: 2.0, 2: 1.0}).predict(9) == 0
    assert CostCurve().predict(3) == 0


def test_a_fraction_of_a_row_costs_its_share():
    assert CostCurve({1: 1.0, 2: 2.0, 3: 2.5}).predict(2.5) == pytest.approx(2.25)


def test_the_table_stands_until_measured_and_fades_then():
    curve = CostCurve({1: 1.0, 2: 5.0, 4: 6.0})
    assert [curve.predict(size) for size in (1, 2, 3, 4)] == [1.0, 5.0, 5.5, 6.0]
    seen = []
    for _ in range(100):
        curve.record(2, 2.0)
        seen.append(curve.predict(2))
    assert seen == sorted(seen, reverse=True)
    assert seen[3] < 4
    assert seen[-1] < 2.4


def test_what_was_never_measured_lies_on_the_line_through_what_was():
    curve = CostCurve()
    for _ in range(6):
        for size in (1, 4):
            curve.record(size, 1 + 0.2 * size)
    assert curve.predict(8) == pytest.approx(2.6)
    assert [size for size in range(9) if curve.knows(size)] == [1, 4]


def test_a_hiccup_is_cut_and_a_change_is_learned():
    curve = CostCurve()
    for _ in range(10):
        curve.record(1, 1.0)
    curve.record(1, 1000.0)
    assert curve.predict(1) < 1.1
    for _ in range(200):
        curve.record(1, 1.5)
    assert curve.predict(1) == pytest.approx(1.5, rel=0.02)
