"""Whether a network would pay follows from answers, rows and the size of its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.lab.tune.estimate import PAYS, Estimate, gain_of, tokens_for, worth_of
from forerun.lab.tune.search import DrafterFigures

BEFORE = DrafterFigures("recycling", 100, 200, 700, 100, {8: 100}, pass_cost=130, draft_cost=3)
"""Two tokens a pass of 1.3 plain passes."""
ESTIMATE = Estimate(300_000, 100_000, 4_300_000, 7200, 600, 5400, 1.06, 1.0, 1.06, 250_000)


@given(st.integers(1000, 10_000_000), st.integers(0, 1_000_000))
def test_more_answers_never_bring_less(tokens, more):
    assert gain_of(tokens + more) >= gain_of(tokens) >= 1


@given(st.integers(110_000, 10_000_000))
def test_the_answers_for_a_gain_bring_it(tokens):
    assert tokens_for(gain_of(tokens)) == pytest.approx(tokens, rel=0.06)


def test_a_step_counts_beside_the_pass_that_it_is_added_to():
    cost, worth = worth_of(BEFORE, 0.133)
    assert cost == pytest.approx(1.1)
    assert worth == pytest.approx(1 / 1.1)
    assert worth_of(BEFORE, 0) == (1, 1)
    cheaper = replace(BEFORE, pass_cost=100)
    assert worth_of(cheaper, 0.133)[1] < worth, "beside a cheaper pass it is dearer"


def test_where_rows_cost_too_much_to_draft_a_network_has_to_make_up_for_that_first():
    dear = replace(BEFORE, pass_cost=397)
    assert worth_of(dear, 0)[1] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("is_made", "changes", "said"),
    [
        (None, {}, "it is made after the table (--no-network leaves it out)"),
        (True, {"speedup": PAYS - 0.01}, "it is made, as --network says"),
        (None, {"speedup": PAYS - 0.01}, "none is made, from 1.05x on it pays: from --tokens 250k"),
        (None, {"speedup": 0.9, "pays_from": None}, "more answers are not expected to change that"),
    ],
)
def test_what_it_takes_and_brings_and_whether_it_is_made_is_said(is_made, changes, said):
    takes, brings = replace(ESTIMATE, **changes).lines(is_made)
    assert "300000 tokens of answers, 100000 of them to be made in about 2.0 hours" in takes
    assert "4.3 M weights takes about 10 minutes to read them and 90 minutes to learn" in takes
    assert "to be made" not in replace(ESTIMATE, missing=0).lines(is_made)[0]
    assert said in brings
